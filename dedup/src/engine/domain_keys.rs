//! Keys of domains that are shared with other pools.

use meta::FingerprintFunction;

use crate::sync::wait::lock;
use crate::volumes::admin::check_name;
use crate::{Engine, EngineError, Result};

impl Engine {
    /// Gives a domain a key of another pool, so that the same content has the same fingerprint in both. `write_down` makes
    /// the pool remember the key, durably; only then it is used.
    ///
    /// # Errors
    /// `Invalid` if volumes are of the domain, deleted ones too until they are freed, because their blocks have fingerprints
    /// by its own key, or if the pool computes fingerprints by another function; or what `write_down` returns.
    pub async fn take_domain_key(
        &self,
        domain: &str,
        function: FingerprintFunction,
        key: [u8; 32],
        write_down: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let shared = &self.shared;
        if !domain.is_empty() {
            check_name(domain, "domain")?;
        }
        let of_pool = shared.domains.function();
        if function != of_pool {
            return Err(EngineError::invalid(format!(
                "the key is one for {function}, and this pool computes fingerprints by {of_pool}, for ever: only a new pool \
                 (`onefold serve --create SIZE --fingerprint {function}`) can share it"
            )));
        }
        // Nobody makes a volume meanwhile.
        let _lock = shared.admin_lock.lock().await;
        let user = {
            let state = lock(&shared.state);
            state.check_writable()?;
            let mut of_domain = state
                .volumes
                .values()
                .filter(|entry| entry.info.domain == domain);
            of_domain
                .next()
                .map(|entry| (entry.info.name.clone(), entry.is_active()))
        };
        if let Some((name, is_active)) = user {
            let domain = match domain {
                "" => "the domain without a name".to_owned(),
                name => format!("domain '{name}'"),
            };
            return Err(EngineError::invalid(match is_active {
                true => format!(
                    "volume '{name}' is of {domain}, and its blocks have fingerprints by the key that this has: take the key \
                     for a domain that has no volume yet"
                ),
                false => format!(
                    "the deleted volume '{name}' is of {domain}, and its blocks are not freed yet: try again when `onefold \
                     health` names it no more"
                ),
            }));
        }
        write_down()?;
        shared.domains.share(domain, key);
        tracing::info!(domain, "a domain has the key of another pool from now on");
        Ok(())
    }
}
