//! Limits of volumes and hosts, from a file into the settings of a pool.

use std::collections::BTreeSet;
use std::sync::Arc;

use subsystem::catalog::Catalog;
use subsystem::throttle::Limited;

use super::{At, Merge, Present, fields};

impl Merge<'_> {
    pub(super) fn limits(&mut self, present: Present<'_>, catalog: &mut Catalog) {
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.limits
        {
            let line = *line;
            let (of, object) = match (&wanted.volume, &wanted.host) {
                (Some(volume), None) => {
                    let object = format!("the limits of volume '{volume}'");
                    let Some(uuid) = self.volume_uuid(present, volume) else {
                        let what = format!(
                            "{object} are of none: it is neither in the file nor in the pool; add its [[volume]]"
                        );
                        self.wrong(line, what);
                        continue;
                    };
                    (Limited::Volume(uuid), object)
                }
                (None, Some(host)) if self.are_names(line, [host]) => (
                    Limited::Host(host.clone()),
                    format!("the limits of host '{host}'"),
                ),
                (None, Some(_)) => continue,
                (None, None) | (Some(_), Some(_)) => {
                    self.wrong(line, "a limit is of one volume or of one host: name either");
                    continue;
                }
            };
            let limits = wanted.limits();
            if !self.is_first(&mut seen, of.clone(), line, &object) {
                continue;
            }
            if let Err(failure) = limits.check(&object) {
                self.wrong(line, failure.message);
                continue;
            }
            let is_taken = match catalog.limits.get(&of).cloned() {
                None => {
                    self.changes.push(format!("set {object}"));
                    true
                }
                Some(known) => self.may_replace(line, &object, &fields(&*known, &limits)),
            };
            if is_taken {
                catalog.limits.insert(of, Arc::new(limits));
            }
        }
    }
}
