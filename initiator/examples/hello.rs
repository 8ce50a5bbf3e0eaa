//! Attaches to a target, writes a greeting, reads it back.
//!
//!     cargo run -p initiator --example hello -- tcp://127.0.0.1:4420 nqn.2026-11.dev.onefold:default

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use fabric::{Connector, TransportAddress};
use initiator::{ConnectOptions, Controller, Host, buffer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(subsystem)) = (arguments.next(), arguments.next()) else {
        return Err("usage: hello tcp://ADDRESS:PORT SUBSYSTEM-NQN".into());
    };
    let address: TransportAddress = address.parse()?;
    let subsystem = subsystem.parse()?;
    reactor::run(reactor::Config::default(), async move {
        let connector = Connector::to_reach(&address)?;
        let options = ConnectOptions::new(address.socket_addr(), subsystem, Host::generate());
        let controller = Controller::connect(&connector, options).await?;
        println!(
            "connected; namespaces: {:?}",
            controller.namespaces().await?
        );
        let namespace = controller.namespace(1).await?;

        let mut greeting = buffer(4096).await;
        greeting.fill(0);
        greeting[..5].copy_from_slice(b"hello");
        let (written, greeting) = namespace.write(0, greeting, true).await;
        written?;
        drop(greeting);

        let (read, answer) = namespace.read(0, buffer(4096).await).await;
        read?;
        println!("read back: {}", String::from_utf8_lossy(&answer[..5]));
        controller.disconnect().await;
        Ok(())
    })?
}
