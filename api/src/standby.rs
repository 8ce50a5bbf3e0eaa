//! What a node answers that does not serve its pool: why, whatever is asked.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use subsystem::errors::Failure;

use crate::errors::Refusal;

/// Why a node answers nothing else. All clones say the same.
#[derive(Clone, Debug)]
pub struct Excuse(Arc<RwLock<String>>);

impl Excuse {
    /// This is said until [`set`](Self::set) says something else.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Arc::new(RwLock::new(text)))
    }

    /// From now on this is said.
    pub fn set(&self, text: String) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn text(&self) -> String {
        let text = self.0.read().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }
}

/// Routes that refuse everything as unavailable, with this.
pub fn router(excuse: Excuse) -> Router {
    Router::new().fallback(move || {
        let refusal = Refusal::from(Failure::unavailable(excuse.text()));
        async { refusal }
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use axum::http::StatusCode;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn whatever_is_asked_of_a_standby_is_answered_with_who_has_the_pool() {
        let excuse = Excuse::new("the machine 'a' has it".to_owned());
        let routes = router(excuse.clone());
        excuse.set("the machine 'b' has it".to_owned());
        for (method, path) in [("GET", "/v1/status"), ("POST", "/v1/volumes"), ("GET", "/")] {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Body::empty()).expect("a request");
            let answer = routes.clone().oneshot(request).await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
            let body = answer.into_body().collect().await.expect("a body");
            let body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
            assert!(body.contains("the machine 'b' has it"), "{body}");
        }
    }
}
