//! A target whose pool another node serves, and what happens when this node takes the pool over.
//!
//! Guarantees:
//! - A standby shows hosts the same subsystems, namespaces and lists as the node that serves the pool, as far as it has heard of
//!   them, and does no command on a namespace: the path is inaccessible (ANA).
//! - A reset of another node's controller that a host asked a standby for is over when the standby has taken the pool over, and not
//!   before: until then nobody here knows what the other node does.
//! - Hosts that are attached stay attached when this node takes the pool over. They are told after the paths are in force.

use std::sync::Arc;

use dedup::{Engine, EngineError, ErrorKind};
use fabric::TransportAddress;

use super::live_catalog::adopt;
use super::{Target, add_transient_ports, own_name, restore_paths};
use crate::catalog::{Catalog, PortConfig, SubsystemConfig, store};
use crate::controller::resets::Awaited;
use crate::controller::saved_features;
use crate::describe::{Describe, Description};
use crate::errors::Failure;
use crate::reservation;
use crate::target::imports;

impl Target {
    /// The engine, if this node serves the pool.
    ///
    /// # Errors
    /// It is a standby.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, EngineError> {
        self.engine.get().ok_or_else(|| {
            let text = "another node serves the pool, and this one is its standby: ask that node";
            EngineError::new(ErrorKind::Unavailable, text)
        })
    }

    /// Asks the pool about itself; what another node says of it counts where that serves it.
    pub(crate) fn describe<T>(&self, ask: impl FnOnce(&dyn Describe) -> T) -> T {
        match self.engine.get() {
            Some(engine) => ask(&**engine),
            None => ask(&*self.shown()),
        }
    }

    /// What another node says of the pool.
    fn shown(&self) -> Arc<Description> {
        crate::lock::lock(&self.description).clone()
    }

    /// Proves, by a record on the drives that changes nothing, that no other node has taken the pool over.
    ///
    /// # Errors
    /// This node is a standby, or the drives refuse the record.
    pub(crate) async fn prove_owner(&self) -> Result<(), EngineError> {
        self.engine()?.change_settings(Vec::new()).await
    }

    /// Whether this node serves the pool.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.engine.get().is_some()
    }

    /// What standbys have to know of the pool now.
    ///
    /// # Errors
    /// This node does not serve it.
    pub fn description(&self) -> Result<Description, Failure> {
        let engine = self.engine()?;
        // As it is in force: it has volumes that no change has attached yet.
        let mut settings = store::values_of(&self.catalog(), true)?;
        for prefix in [
            saved_features::PREFIX,
            reservation::KEY_PREFIX,
            imports::KEY_PREFIX,
        ] {
            let stored = engine.settings(prefix).into_iter();
            settings.extend(stored.map(|(key, value)| (key, value.to_vec())));
        }
        Ok(Description::of(self.pool_uuid, engine, settings))
    }

    /// Shows hosts what the node that serves the pool says of it now.
    ///
    /// # Errors
    /// It cannot be understood, or is of another pool; then hosts are shown what they were shown before.
    pub async fn show(&self, description: Description) -> Result<(), Failure> {
        let _changing = self.changing.lock().await;
        if self.is_serving() || description == *self.shown() {
            return Ok(());
        }
        if description.pool != self.pool_uuid {
            return Err(Failure::invalid(format!(
                "the drive has the pool {} now, and this node is a standby of {}: start it again",
                description.pool, self.pool_uuid
            )));
        }
        let catalog = self.load_again(&description)?;
        self.reservations.load_again(&description)?;
        *crate::lock::lock(&self.description) = Arc::new(description);
        self.publish(Some(catalog), None);
        Ok(())
    }

    /// Serves the pool from here on. Hosts that are attached are told that their paths lead to it.
    ///
    /// # Errors
    /// A setting of the pool cannot be understood; then nothing has changed.
    pub async fn take_over(self: &Arc<Self>, engine: Arc<Engine>) -> Result<(), Failure> {
        let _changing = self.changing.lock().await;
        if self.is_serving() {
            return Err(Failure::invalid("it serves a pool already"));
        }
        saved_features::check(&*engine)?;
        let catalog = self.load_again(&*engine)?;
        self.reservations.load_again(&*engine)?;
        self.record.open_again(&*engine)?;
        // Nobody else sets it meanwhile.
        let _ = self.engine.set(engine);
        self.publish(Some(catalog), None);
        self.follow_volumes();
        // Opening the pool has shut out who had it before.
        for controller in self.controllers() {
            controller.settle_resets(Awaited::Pool, |_| true);
        }
        Ok(())
    }

    /// Tells hosts where other nodes offer the same pool.
    ///
    /// # Errors
    /// None that anybody knows.
    pub async fn set_elsewhere(&self, listeners: Vec<PortConfig>) -> Result<(), Failure> {
        let _changing = self.changing.lock().await;
        let now = self.catalog();
        if now.elsewhere != listeners {
            tracing::info!(
                listeners = listeners.len(),
                "other nodes offer the pool too: hosts are told of their listeners"
            );
            let mut next = Catalog::clone(&now);
            next.elsewhere = listeners;
            self.publish(Some(next), None);
        }
        Ok(())
    }

    /// The catalog of the pool, with the listeners that this node has.
    fn load_again(&self, pool: &dyn Describe) -> Result<Catalog, Failure> {
        let before = self.catalog();
        let own: Vec<_> = before
            .ports
            .values()
            .filter(|port| port.is_transient)
            .collect();
        let mut catalog = load(pool, &self.serial)?;
        catalog.elsewhere.clone_from(&before.elsewhere);
        for port in &own {
            let is_there = |address: TransportAddress| {
                let mut ports = catalog.ports.values();
                ports.any(|port| port.address == address)
            };
            // Controllers know their listener by its number.
            if !is_there(port.address) && !catalog.ports.contains_key(&port.id) {
                catalog.ports.insert(port.id, (*port).clone());
            }
        }
        for port in own {
            add_transient_ports(&mut catalog, &[port.address], port.tls)?;
        }
        restore_paths(&mut catalog, store::load_paths(pool)?);
        adopt(&mut catalog, &pool.volumes(), false);
        catalog.check()?;
        Ok(catalog)
    }
}

/// The catalog that the pool stores, and the default subsystem.
pub(super) fn load(pool: &dyn Describe, serial: &str) -> Result<Catalog, Failure> {
    let default = own_name(crate::DEFAULT_SUBSYSTEM_NQN.to_owned())?;
    store::load(pool, SubsystemConfig::new(default, serial.to_owned()))
}
