//! The keys of a host that an import brings in.

use nvme::auth::{ConfiguredPsk, Group, Hash, Secret};
use openssl::rand::rand_bytes;
use subsystem::catalog::{HostAuth, TlsKey};
use subsystem::errors::Failure;
use zeroize::Zeroizing;

use crate::hosts::now;

use super::document::{Host, SecretHash, TlsKeyEntry};
use super::wrapped::{Hidden, HostSecrets};

/// What a host has after the import, and what its owner has to do for it. A secret is the file's (`given`, if they were
/// unwrapped), else what the pool has (`known`), else random: then nobody can authenticate until it is set. TLS keys that
/// only the pool has stay.
///
/// # Errors
/// Names what is wrong.
pub(super) fn resolve(
    host: &Host,
    given: Option<&HostSecrets>,
    known: Option<&HostAuth>,
) -> Result<(HostAuth, Vec<String>), Failure> {
    let mut notes = Vec::new();
    let mut secret = |kind: &str,
                      option: &str,
                      hash: Option<SecretHash>,
                      given: Option<Option<&Hidden>>,
                      known: Option<&Secret>|
     -> Result<Option<Secret>, Failure> {
        let Some(hash) = hash else {
            return Ok(None);
        };
        match (given, known) {
            (Some(Some(text)), _) => {
                let secret = parse(kind, Secret::parse(text.as_str()))?;
                same_hash(kind, hash, secret.transform().into())?;
                Ok(Some(secret))
            }
            (Some(None), _) => Err(missing(kind)),
            (None, Some(known)) => Ok(Some(known.clone())),
            (None, None) => {
                notes.push(format!(
                    "host '{}' cannot connect: the file does not have its {kind}; give it with `onefold host set {} {option} \
                     FILE`",
                    host.nqn, host.nqn
                ));
                Ok(Some(Secret::from_random(hash.into(), &*random()?)))
            }
        }
    };
    let of = |pick: fn(&HostSecrets) -> &Option<Hidden>| given.map(|given| pick(given).as_ref());
    let dhchap_secret = secret(
        "secret",
        "--dhchap-secret-file",
        host.dhchap_secret,
        of(|given| &given.dhchap_secret),
        known.and_then(|known| known.dhchap_secret.as_ref()),
    )?;
    let dhchap_ctrl_secret = secret(
        "controller's secret",
        "--dhchap-ctrl-secret-file",
        host.dhchap_ctrl_secret,
        of(|given| &given.dhchap_ctrl_secret),
        known.and_then(|known| known.dhchap_ctrl_secret.as_ref()),
    )?;
    if dhchap_ctrl_secret.is_some() && dhchap_secret.is_none() {
        return Err(Failure::invalid(
            "a controller's secret needs one of the host too: write dhchap_secret",
        ));
    }
    let mut tls_keys: Vec<TlsKey> = known
        .map(|known| known.tls_keys.clone())
        .unwrap_or_default();
    for entry in &host.tls_keys {
        let place = tls_keys.iter().position(|key| key.id == entry.id);
        let key = tls_key(
            host,
            entry,
            given,
            place.and_then(|at| tls_keys.get(at)),
            &mut notes,
        )?;
        match place.and_then(|at| tls_keys.get_mut(at)) {
            Some(place) => *place = key,
            None => tls_keys.push(key),
        }
    }
    tls_keys.sort_by_key(|key| key.id);
    let newest = tls_keys.last().map_or(0, |key| key.id);
    let made = known.map_or(0, |known| known.tls_keys_made);
    let auth = HostAuth {
        dhchap_secret_since: since(
            dhchap_secret.as_ref(),
            known.map(|known| (known.dhchap_secret.as_ref(), known.dhchap_secret_since)),
        ),
        dhchap_ctrl_secret_since: since(
            dhchap_ctrl_secret.as_ref(),
            known.map(|known| {
                (
                    known.dhchap_ctrl_secret.as_ref(),
                    known.dhchap_ctrl_secret_since,
                )
            }),
        ),
        dhchap_secret,
        dhchap_ctrl_secret,
        dhchap_hashes: names(&host.dhchap_hashes, Hash::from_name)?,
        dhchap_groups: names(&host.dhchap_groups, Group::from_name)?,
        tls_keys,
        tls_keys_made: host.tls_keys_made.max(made).max(newest),
        tls_only: host.tls_only,
    };
    Ok((auth, notes))
}

/// Since when the pool has a secret: what it had keeps its date, another one has that of the import.
fn since<T: PartialEq>(
    secret: Option<&T>,
    known: Option<(Option<&T>, Option<u64>)>,
) -> Option<u64> {
    match known {
        Some((was, since)) if was == secret => since,
        _ => secret.and_then(|_| now()),
    }
}

fn tls_key(
    host: &Host,
    entry: &TlsKeyEntry,
    given: Option<&HostSecrets>,
    known: Option<&TlsKey>,
    notes: &mut Vec<String>,
) -> Result<TlsKey, Failure> {
    let kind = format!("TLS key {}", entry.id);
    let psk = match (given, known) {
        (Some(given), _) => {
            let text = given
                .tls_keys
                .get(&entry.id)
                .ok_or_else(|| missing(&kind))?;
            let psk = parse(&kind, ConfiguredPsk::parse(text.as_str()))?;
            same_hash(&kind, entry.hash, Some(psk.hash()).into())?;
            psk
        }
        (None, Some(known)) => known.psk.clone(),
        (None, None) => {
            let hash = match entry.hash.into() {
                Some(hash @ (Hash::Sha256 | Hash::Sha384)) => hash,
                _ => {
                    return Err(Failure::invalid(format!(
                        "{kind}: its hash is neither sha256 nor sha384"
                    )));
                }
            };
            let nqn = &host.nqn;
            notes.push(format!(
                "host '{nqn}' cannot use {kind}: the file does not have it; `onefold host tls-key add {nqn} --file FILE` adds it, \
                 `onefold host tls-key remove {nqn} {}` removes what stands for it",
                entry.id
            ));
            ConfiguredPsk::from_random(hash, &*random()?)
        }
    };
    Ok(TlsKey {
        id: entry.id,
        since: since(
            Some(&psk),
            known.map(|known| (Some(&known.psk), known.since)),
        ),
        psk,
        compat: entry.compat,
    })
}

fn random() -> Result<Zeroizing<[u8; 64]>, Failure> {
    let mut bytes = Zeroizing::new([0; 64]);
    rand_bytes(&mut *bytes).map_err(|error| {
        Failure::new(
            dedup::ErrorKind::Internal,
            format!("no random secret can be made: {error}"),
        )
    })?;
    Ok(bytes)
}

fn parse<T, E: std::fmt::Display>(kind: &str, parsed: Result<T, E>) -> Result<T, Failure> {
    parsed.map_err(|error| Failure::invalid(format!("its {kind} in [secrets]: {error}")))
}

fn missing(kind: &str) -> Failure {
    Failure::invalid(format!(
        "its {kind} is not in [secrets]: remove it here, or remove [secrets] and set all secrets after the import"
    ))
}

fn same_hash(kind: &str, written: SecretHash, is: SecretHash) -> Result<(), Failure> {
    match written == is {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "its {kind} in [secrets] has another hash than is written here: write what the export had"
        ))),
    }
}

fn names<T>(names: &[String], from_name: fn(&str) -> Option<T>) -> Result<Vec<T>, Failure> {
    let parse = |name: &String| {
        from_name(name).ok_or_else(|| {
            Failure::invalid(format!(
                "'{name}' is not one of the names that `onefold host set --help` lists"
            ))
        })
    };
    names.iter().map(parse).collect()
}
