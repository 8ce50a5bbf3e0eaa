//! What the daemon works at in the background, and exports.

use std::fmt;
use std::sync::Arc;

use subsystem::catalog::{ExportConfig, ExportKind};

use super::page::{Page, plain, seconds};
use crate::scrub;
use crate::server::ApiState;
use crate::task_list::TaskKind;

/// Tasks, the last scrub, and exports.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The kinds of the tasks that run.
    pub(super) running: Vec<TaskKind>,
    /// When the last scrub ended that read everything, in seconds since 1970.
    pub(super) scrubbed_at: Option<u64>,
    pub(super) exports: Vec<Export>,
}

/// An export.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) kind: ExportKind,
    pub(super) address: String,
    /// How many use it; `None` if nobody can reach it.
    pub(super) connections: Option<u64>,
}

impl Work {
    pub(super) async fn look(state: &ApiState) -> Self {
        let tasks = state.tasks.all().into_iter();
        let running = tasks.filter(|task| task.is_running());
        let served = state.daemon.exports().await;
        let catalog = state.target.catalog();
        let exports = catalog.exports.values();
        let export = |export: &Arc<ExportConfig>| Export {
            kind: export.kind,
            address: export.address.clone(),
            connections: served.get(&export.id).map(|now| now.connections),
        };
        Self {
            running: running.map(|task| task.view().kind).collect(),
            scrubbed_at: scrub::last_finished(&state.engine),
            exports: exports.map(export).collect(),
        }
    }

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let names = TaskKind::ALL.map(|kind| (kind, kind.to_string()));
        let count = |kind| self.running.iter().filter(|it| **it == kind).count() as u64;
        page.gauges(
            plain("tasks_running", "Long tasks that run now"),
            names
                .iter()
                .map(|(kind, name)| (vec![("kind", name.as_str())], count(*kind))),
        )?;
        page.gauges(
            seconds(
                "scrub_last",
                "When the last scrub ended that read everything, since 1970",
            ),
            self.scrubbed_at.map(|at| (Vec::new(), at)),
        )?;
        fn labels(export: &Export) -> Vec<(&'static str, &str)> {
            let kind = export.kind.name();
            vec![("kind", kind), ("address", export.address.as_str())]
        }
        let exports = self.exports.iter();
        page.gauges(
            plain("export_served", "1 if somebody can reach the export"),
            exports
                .clone()
                .map(|it| (labels(it), u64::from(it.connections.is_some()))),
        )?;
        page.gauges(
            plain("export_connections", "Those who use the export now"),
            exports.map(|it| (labels(it), it.connections.unwrap_or(0))),
        )
    }
}
