//! Several nodes offer one pool whose drives are on sleds (`onefold serve --join`), and hosts are attached to all of them.

mod cluster;
mod cut_off;
mod kept;
mod names;
mod offered;
mod standby;
mod wrong_pool;
