//! Virtual machines made by hand: memory that is shared with the device, a driver's side of the rings in it, and a
//! front-end that says what it likes.

mod front_end;
mod harness;
mod hostile;
mod limits;
mod lost;
mod stories;
