//! Refusals with an HTTP status, as in RFC 9457.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::control_request::NoAnswer;
use crate::types::{self, Refusal};

/// The content type of a [`types::Problem`].
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

const ACTION_HINT: &str =
    "send JSON such as {\"action\":\"drain\",\"instance\":3} with content-type: application/json";

/// A refusal with its status.
#[derive(Debug)]
pub(crate) struct Problem(pub(crate) StatusCode, pub(crate) Refusal);

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem(status, Refusal::new(error, hint))
    }

    /// The request is not possible in the current state.
    pub(crate) fn conflict(refusal: Refusal) -> Problem {
        Problem(StatusCode::CONFLICT, refusal)
    }

    /// The requested object does not exist.
    pub(crate) fn missing(refusal: Refusal) -> Problem {
        Problem(StatusCode::NOT_FOUND, refusal)
    }

    /// The JSON is not an action.
    pub(crate) fn not_an_action(error: serde_json::Error) -> Problem {
        let error = format!("the body is not an action: {error}");
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error, ACTION_HINT)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem(status, refusal) = self;
        let body = types::Problem {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: refusal.error,
            hint: refusal.hint,
        };
        let mut response = (status, axum::Json(body)).into_response();
        let kind = HeaderValue::from_static(PROBLEM_JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

impl From<NoAnswer> for Problem {
    fn from(no: NoAnswer) -> Problem {
        let (error, hint) = match no {
            NoAnswer::Busy => ("inco is busy with other requests", "try again later"),
            NoAnswer::Ended => ("inco is stopping", "start it with `inco run -f inco.toml`"),
        };
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, error, hint)
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            rejection.body_text(),
            "correct the query: see /v1/openapi.json",
        )
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            rejection.body_text(),
            "correct the path: see /v1/openapi.json",
        )
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text(), ACTION_HINT)
    }
}
