//! The OpenAPI document: what can be asked for, for programs that write clients, and for those that try them out.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/openapi.json` | docs/openapi.json |
//!
//! It is kept by hand. Made from the types (by utoipa) it would have to be a dependency of the engine and of the metadata,
//! whose types stand in answers, and those know nothing of HTTP. Tests hold it against the code: its operations and roles
//! against [`crate::operations`], the fields of requests against what is parsed, and answers of a daemon against their
//! schemas, which allow no field that they do not name.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use crate::server::ApiState;

/// The document.
const DOCUMENT: &str = include_str!("../../docs/openapi.json");

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let document = async || ([(CONTENT_TYPE, "application/json")], DOCUMENT);
    Router::new().route("/v1/openapi.json", get(document))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::operations::{OPERATIONS, Right};

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).expect("the document is JSON")
    }

    #[test]
    fn the_document_has_every_operation_with_its_role_and_no_other() {
        let document = document();
        let paths = document["paths"].as_object().expect("paths");
        let documented: BTreeSet<String> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods");
                methods.iter().map(move |(method, operation)| {
                    let role = operation["x-onefold-role"].as_str().expect("a role");
                    let is_local = operation["security"] == json!([{}, {"token": []}]);
                    format!("{} {path} {role} {is_local}", method.to_uppercase())
                })
            })
            .collect();
        let operations: BTreeSet<String> = OPERATIONS
            .iter()
            .filter_map(|it| match it.right {
                // The page for browsers is no part of the API.
                Right::Anybody => None,
                Right::Local(role) => Some(format!("{} {} {role} true", it.method, it.path)),
                Right::Of(role) => Some(format!("{} {} {role} false", it.method, it.path)),
            })
            .collect();
        assert_eq!(documented, operations);
        for (path, methods) in paths {
            for (method, operation) in methods.as_object().expect("methods") {
                let given = operation["parameters"].as_array().into_iter().flatten();
                let given = given.filter(|it| it["in"] == "path");
                let given: BTreeSet<&str> = given.filter_map(|it| it["name"].as_str()).collect();
                let parts = path.split('/').filter_map(|part| part.strip_prefix('{'));
                let wanted: BTreeSet<&str> = parts.map(|it| it.trim_end_matches('}')).collect();
                assert_eq!(given, wanted, "{method} {path}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_schema_is_used() {
        let document = document();
        let references: BTreeSet<String> = DOCUMENT
            .split("\"$ref\": \"#/")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .map(str::to_owned)
            .collect();
        for reference in &references {
            let found = document.pointer(&format!("/{reference}"));
            assert!(found.is_some(), "{reference} leads nowhere");
        }
        for name in document["components"]["schemas"]
            .as_object()
            .expect("schemas")
            .keys()
        {
            let reference = format!("components/schemas/{name}");
            assert!(references.contains(&reference), "nobody uses {name}");
        }
    }

    /// The fields that a type takes, as its own error lists them.
    fn fields_of<T: DeserializeOwned>() -> BTreeSet<String> {
        let refused = serde_json::from_value::<T>(json!({"no such field": 1}));
        let text = refused.err().expect("it is unknown").to_string();
        let (_, expected) = text.split_once("expected").expect("a list");
        let names = expected.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    }

    #[test]
    fn requests_have_exactly_the_documented_fields() {
        let document = document();
        let check = |name: &str, fields: BTreeSet<String>| {
            let schema = &document["components"]["schemas"][name];
            let properties = schema["properties"].as_object().expect(name);
            let documented: BTreeSet<String> = properties.keys().cloned().collect();
            assert_eq!(documented, fields, "{name}");
        };
        check("CreateVolume", fields_of::<crate::volumes::CreateVolume>());
        check("ResizeVolume", fields_of::<crate::volumes::ResizeVolume>());
        check("SetPolicy", fields_of::<crate::volumes::SetPolicy>());
        check("SetLimits", fields_of::<crate::limits::SetLimits>());
        check("RenameVolume", fields_of::<crate::volumes::RenameVolume>());
        check("BeginImport", fields_of::<crate::images::BeginImport>());
        check("WriteParts", fields_of::<crate::images::WriteParts>());
        check("FindKnown", fields_of::<crate::known::FindKnown>());
        check("SoughtBlock", fields_of::<crate::known::SoughtBlock>());
        check("TakeKey", fields_of::<crate::known::TakeKey>());
        check("LikelyPlace", fields_of::<crate::known::LikelyPlace>());
        check("ImportPart", fields_of::<crate::images::ImportPart>());
        check("ChangesOf", fields_of::<crate::images::ChangesOf>());
        check(
            "ReceivedSnapshot",
            fields_of::<crate::images::ReceivedSnapshot>(),
        );
        check("KeepImport", fields_of::<crate::images::KeepImport>());
        check("FinishImport", fields_of::<crate::images::FinishImport>());
        check(
            "CreateSnapshots",
            fields_of::<crate::snapshots::CreateSnapshots>(),
        );
        check("RollBack", fields_of::<crate::snapshots::RollBack>());
        check("CloneVolume", fields_of::<crate::snapshots::CloneVolume>());
        check(
            "SnapshotSchedule",
            fields_of::<crate::snapshot_schedules::SnapshotSchedule>(),
        );
        check("StartScrub", fields_of::<crate::scrub::StartScrub>());
        check("ScrubSchedule", fields_of::<crate::scrub::ScrubSchedule>());
        check("StartTask", fields_of::<crate::tasks::StartTask>());
        check("FinishTask", fields_of::<crate::tasks::FinishTask>());
        check("ExportConfig", fields_of::<crate::config::ExportConfig>());
        check("ImportConfig", fields_of::<crate::config::ImportConfig>());
        check("SetPool", fields_of::<crate::pool::SetPool>());
        check(
            "SetReliability",
            fields_of::<crate::reliability::SetReliability>(),
        );
        check("MakeBackup", fields_of::<crate::pool::MakeBackup>());
        check("AddDrive", fields_of::<crate::drives::AddDrive>());
        check("ChangeDrive", fields_of::<crate::drives::ChangeDrive>());
        check(
            "CreateSubsystem",
            fields_of::<crate::subsystems::CreateSubsystem>(),
        );
        check(
            "SetSubsystem",
            fields_of::<crate::subsystems::SetSubsystem>(),
        );
        check("AllowHost", fields_of::<crate::subsystems::AllowHost>());
        check("AddReferral", fields_of::<crate::referrals::AddReferral>());
        check("SetAna", fields_of::<crate::ana::SetAna>());
        check("SetHost", fields_of::<crate::hosts::SetHost>());
        check("AddTlsKey", fields_of::<crate::hosts::AddTlsKey>());
        check("AddListener", fields_of::<crate::listeners::AddListener>());
        check("SetListener", fields_of::<crate::listeners::SetListener>());
        check("CreateExport", fields_of::<crate::exports::CreateExport>());
        check("CreateToken", fields_of::<crate::tokens::CreateToken>());
    }
}
