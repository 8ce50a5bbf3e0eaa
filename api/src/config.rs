//! The configuration file of the daemon.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/config/reload` | what came of it, a [`Reloaded`] |

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use hyper::Method;
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::server::{ApiState, Reloaded};

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/config/reload", post(reload))
}

async fn reload(State(state): State<ApiState>) -> Answer<Reloaded> {
    Ok(Json(state.daemon.reload_config().await?))
}

impl Client {
    /// Lets the daemon read its configuration file again.
    ///
    /// # Errors
    /// The file has mistakes, the daemon was started without one, or no daemon serves the pool.
    pub async fn reload_config(&self) -> Result<Reloaded, Failure> {
        let path = "/v1/config/reload";
        self.send(Method::POST, path, None::<&()>).await
    }
}
