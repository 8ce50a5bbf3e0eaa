//! What a request names in its path and its query, and says in its body.
//!
//! Guarantee: what cannot be understood is refused as an [`ErrorBody`](crate::errors::ErrorBody), like everything else.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::{Json, extract};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use subsystem::errors::Failure;

use crate::errors::Refusal;

/// What a request names in its path.
pub(crate) struct Path<T>(pub(crate) T);

/// What it names behind the `?`.
pub(crate) struct Query<T>(pub(crate) T);

/// The JSON object that it carries.
pub(crate) struct Body<T>(pub(crate) T);

/// A field of a body that is present, even as `null`.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A field of a body that is an object or `null`. Serde would take an array for a structure here too.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_none<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, object: D) -> Result<Option<T>, D::Error> {
            object.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    deserializer.deserialize_option(Object(PhantomData))
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let taken = extract::Path::from_request_parts(parts, state).await;
        let extract::Path(named) =
            taken.map_err(|rejection: PathRejection| malformed("path", &rejection.body_text()))?;
        Ok(Self(named))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let taken = extract::Query::from_request_parts(parts, state).await;
        let extract::Query(named) = taken
            .map_err(|rejection: QueryRejection| malformed("query", &rejection.body_text()))?;
        Ok(Self(named))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let of_body = |rejection: JsonRejection| malformed("body", &rejection.body_text());
        let Json(json) = Json::<Box<RawValue>>::from_request(request, state)
            .await
            .map_err(of_body)?;
        // Serde would take an array for a structure, its values in the order of the fields: nobody means that.
        if !json.get().starts_with('{') {
            return Err(malformed("body", "it is no JSON object"));
        }
        let Json(said) = Json::from_bytes(json.get().as_bytes()).map_err(of_body)?;
        Ok(Self(said))
    }
}

fn malformed(part: &str, why: &str) -> Refusal {
    Failure::invalid(format!("the request's {part} is not as expected: {why}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::Router;
    use axum::body::{Body as HttpBody, to_bytes};
    use axum::http::StatusCode;
    use axum::routing::{get, post};
    use serde::Deserialize;
    use tower::ServiceExt;

    use crate::errors::ErrorBody;

    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Rate {
        rate: u32,
    }

    async fn named(Path(id): Path<u16>) -> Json<u16> {
        Json(id)
    }

    async fn asked(Query(rate): Query<Rate>) -> Json<u32> {
        Json(rate.rate)
    }

    async fn said(Body(rate): Body<Rate>) -> Json<u32> {
        Json(rate.rate)
    }

    /// The answer to a request: its status and its text.
    async fn answer(
        method: &str,
        path: &str,
        kind: &str,
        body: &'static str,
    ) -> (StatusCode, String) {
        let routes = Router::new()
            .route("/named/{id}", get(named))
            .route("/asked", get(asked))
            .route("/said", post(said));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(HttpBody::from(body))
            .unwrap();
        let answer = routes.oneshot(request).await.unwrap();
        let status = answer.status();
        let text = to_bytes(answer.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn a_structure_in_a_body_is_an_object_or_null() {
        #[derive(Deserialize)]
        struct Said {
            #[serde(default, deserialize_with = "object")]
            rate: Option<Rate>,
        }
        for (text, wanted) in [
            ("{}", Some(None)),
            ("{\"rate\": null}", Some(None)),
            ("{\"rate\": {\"rate\": 7}}", Some(Some(7))),
            ("{\"rate\": [7]}", None),
            ("{\"rate\": []}", None),
            ("{\"rate\": {\"pace\": 7}}", None),
        ] {
            let said = serde_json::from_str::<Said>(text).ok();
            let rate = said.map(|said| said.rate.map(|rate| rate.rate));
            assert_eq!(rate, wanted, "{text}");
        }
    }

    #[tokio::test]
    async fn what_a_request_says_is_taken() {
        for (method, path, body) in [
            ("GET", "/named/7", ""),
            ("GET", "/asked?rate=7", ""),
            ("POST", "/said", " {\"rate\": 7}"),
        ] {
            let (status, text) = answer(method, path, "application/json", body).await;
            assert_eq!((status, text.as_str()), (StatusCode::OK, "7"), "{path}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_understood_is_refused_as_json_that_names_the_part() {
        let json = "application/json";
        for (part, method, path, kind, body) in [
            ("path", "GET", "/named/-1", json, ""),
            ("path", "GET", "/named/65536", json, ""),
            ("path", "GET", "/named/%FF", json, ""),
            ("query", "GET", "/asked?rate=many", json, ""),
            ("query", "GET", "/asked?pace=7", json, ""),
            ("body", "POST", "/said", json, "[]"),
            ("body", "POST", "/said", json, "[7]"),
            ("body", "POST", "/said", json, "7"),
            ("body", "POST", "/said", json, "{"),
            ("body", "POST", "/said", json, "{\"rate\": 7, \"rate\": 8}"),
            ("body", "POST", "/said", json, "{\"pace\": 7}"),
            ("body", "POST", "/said", "text/plain", "{\"rate\": 7}"),
        ] {
            let (status, text) = answer(method, path, kind, body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}: {text}");
            let refusal: ErrorBody = serde_json::from_str(&text).unwrap();
            assert_eq!(refusal.kind, "invalid");
            let names = format!("the request's {part} is not as expected: ");
            assert!(refusal.message.starts_with(&names), "{path} {body}: {text}");
        }
    }
}
