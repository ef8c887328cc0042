//! Refusals with an HTTP status, as RFC 9457 has them.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::question::NoAnswer;
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

    /// What was asked for cannot be done as things are.
    pub(crate) fn conflict(refusal: Refusal) -> Problem {
        Problem(StatusCode::CONFLICT, refusal)
    }

    /// There is nothing of that name.
    pub(crate) fn missing(refusal: Refusal) -> Problem {
        Problem(StatusCode::NOT_FOUND, refusal)
    }

    /// JSON that describes no action.
    pub(crate) fn not_an_action(error: serde_json::Error) -> Problem {
        let error = format!("this is not an action: {error}");
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
            NoAnswer::Busy => ("inco has too many questions to answer", "try again in a moment"),
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
            "correct the query: /v1/openapi.json says what there is",
        )
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            rejection.body_text(),
            "correct the path: /v1/openapi.json says what there is",
        )
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text(), ACTION_HINT)
    }
}
