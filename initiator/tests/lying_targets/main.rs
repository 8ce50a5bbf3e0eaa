//! Targets that lie, over both transports: what they answer ends as what it is, as an error that says what
//! was wrong, or with the queue; never as data that nobody read, and never by waiting for ever.
//!
//! These lie in commands and answers. What lies below, in packets and PDUs, is in `fabric/tests`.

mod answers;
mod connecting;
mod target;
