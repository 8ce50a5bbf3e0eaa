//! Referrals: other discovery services that hosts are referred to.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/referrals` | list of [`ReferralView`] |
//! | `POST /v1/referrals` with [`AddReferral`] | [`ReferralView`] |
//! | `DELETE /v1/referrals/ID` | the [`ReferralView`] that it was |

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{delete, get};
use axum::{Json, Router};
use dedup::ErrorKind;
use fabric::TransportAddress;
use hyper::Method;
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use subsystem::catalog::{self, Referral};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, change, check_new, parse_nqn};

/// Another discovery service as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferralView {
    /// Its number.
    pub id: u16,
    /// Where it listens.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
    /// The name of its discovery subsystem.
    pub nqn: Nqn,
}

/// A new referral.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddReferral {
    /// Where it listens.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
    /// The name of its discovery subsystem; without it the well-known one.
    #[serde(default)]
    pub nqn: Option<Nqn>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/referrals", get(list).post(add))
        .route("/v1/referrals/{id}", delete(remove))
}

fn view(referral: &Referral) -> ReferralView {
    ReferralView {
        id: referral.id,
        address: referral.address,
        nqn: referral.nqn.clone(),
    }
}

async fn list(State(state): State<ApiState>) -> Json<Vec<ReferralView>> {
    let catalog = state.target.catalog();
    let all = catalog.referrals.values();
    Json(all.map(|referral| view(referral)).collect())
}

async fn add(
    State(state): State<ApiState>,
    Body(request): Body<AddReferral>,
) -> Answer<ReferralView> {
    check_new(&request.nqn)?;
    let nqn = match request.nqn {
        Some(nqn) => nqn,
        None => parse_nqn(nvme::nqn::DISCOVERY)?,
    };
    let view = change(&state, move |catalog| {
        let known = catalog.referrals.values();
        if known.into_iter().any(|r| r.address == request.address) {
            return Err(Failure::invalid(format!(
                "there is a referral to '{}' already: `onefold referral list` shows it",
                request.address
            )));
        }
        let free = (1..=u16::MAX).find(|id| !catalog.referrals.contains_key(id));
        let id = free.ok_or_else(|| {
            Failure::invalid(
                "no identifier of a referral is free: take one away with `onefold referral remove`",
            )
        })?;
        let referral = Referral {
            id,
            address: request.address,
            nqn,
        };
        let view = view(&referral);
        catalog.referrals.insert(id, Arc::new(referral));
        Ok(view)
    })
    .await?;
    Ok(Json(view))
}

async fn remove(State(state): State<ApiState>, Path(id): Path<u16>) -> Answer<ReferralView> {
    let view = change(&state, move |catalog| {
        let gone = catalog.referrals.remove(&id).ok_or_else(|| {
            Failure::new(
                ErrorKind::NotFound,
                format!("there is no referral {id}: `onefold referral list` shows those there are"),
            )
        })?;
        Ok(view(&gone))
    })
    .await?;
    Ok(Json(view))
}

impl Client {
    /// All referrals.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn referrals(&self) -> Result<Vec<ReferralView>, Failure> {
        self.get("/v1/referrals").await
    }

    /// Refers hosts to another discovery service.
    ///
    /// # Errors
    /// The daemon refuses (told already, bounds), or no daemon serves the pool.
    pub async fn add_referral(&self, request: &AddReferral) -> Result<ReferralView, Failure> {
        self.send(Method::POST, "/v1/referrals", Some(request))
            .await
    }

    /// Removes a referral.
    ///
    /// # Errors
    /// There is no such referral, or no daemon serves the pool.
    pub async fn remove_referral(&self, id: u16) -> Result<ReferralView, Failure> {
        let path = format!("/v1/referrals/{id}");
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}
