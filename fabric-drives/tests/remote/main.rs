//! Drives on a target of another thread, over real TCP: what a pool relies on when its drives are elsewhere.

mod conforms;
mod fences;
mod keys;
mod losses;
mod node_table;
mod nodes;
mod sled;
mod transfers;
