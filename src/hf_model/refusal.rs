//! What the Hub's refusals mean, and what to do about them.

use super::http::Refused;
use crate::error::{Error, ErrorKind};

/// What was asked for when the Hub refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) endpoint: &'a str,
    pub(super) id: &'a str,
    pub(super) revision: &'a str,
    pub(super) file: Option<&'a str>,
    pub(super) has_token: bool,
}

/// The error for a refusal: its class by status and by the Hub's own code.
pub(super) fn explain(refused: &Refused, asked: Asked<'_>) -> Error {
    let Asked {
        endpoint,
        id,
        revision,
        file,
        has_token,
    } = asked;
    let page = format!("{}/{id}", endpoint.trim_end_matches('/'));
    let denied = |message: String| Error::new(ErrorKind::Denied, message);
    let missing = |message: String| Error::new(ErrorKind::NotFound, message);
    let no_repository = || {
        let error = missing(format!("the Hub has no model {id}, or it is a private one"));
        error.help(match has_token {
            true => "check the id; the token that was sent (HF_TOKEN or the token file) has to have access to private models",
            false => "check the id; private models need a token: set HF_TOKEN, or log in",
        })
    };
    match (refused.status.as_u16(), &*refused.code) {
        (_, "GatedRepo") => {
            let error = denied(format!("model {id} is gated: access has to be granted"));
            error.help(match has_token {
                true => format!("a token was sent, but it has no access: ask for it at {page}, and see that the token may read gated models"),
                false => format!("ask for access at {page}, then set HF_TOKEN (no token was found)"),
            })
        }
        (_, "RevisionNotFound") => missing(format!("model {id} has no revision {revision}"))
            .help(format!("see the branches and tags at {page}/tree/main")),
        (_, "EntryNotFound") => missing(match file {
            Some(file) => format!(
                "{id} at {revision} has no file {}",
                crate::text::quoted(file)
            ),
            None => format!("{id} at {revision} has no such file"),
        })
        .help("name another revision, or report it to the owner of the model"),
        (_, "RepoNotFound") => no_repository(),
        // The Hub does not tell strangers whether a private model exists.
        (401, _) if !has_token => no_repository(),
        (401, _) => denied(format!("the Hub does not accept the token for {id}"))
            .help("it may have expired: make a new one, and set HF_TOKEN or log in again"),
        (403, _) => denied(format!("access to model {id} is forbidden")).help(match has_token {
            true => format!(
                "see that the token may read this model, and that {page} opens for its owner"
            ),
            false => format!("ask for access at {page}, then set HF_TOKEN (no token was found)"),
        }),
        (404, _) => match file {
            Some(file) => missing(format!(
                "{id} at {revision} has no file {}",
                crate::text::quoted(file)
            ))
            .help("name another revision, or report it to the owner of the model"),
            None => no_repository(),
        },
        _ => plain(refused),
    }
}

/// An answer that nothing is known about.
pub(super) fn plain(refused: &Refused) -> Error {
    Error::new(
        ErrorKind::Network,
        format!("{} answers with status {}", refused.url, refused.status),
    )
    .help("see that HF_ENDPOINT is a Hub, and that no proxy answers for it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::StatusCode;

    #[test]
    fn each_refusal_has_its_class_and_a_remedy() {
        for (status, code, file, has_token, kind, words) in [
            (403, "GatedRepo", None, false, ErrorKind::Denied, "HF_TOKEN"),
            (
                401,
                "GatedRepo",
                None,
                true,
                ErrorKind::Denied,
                "a token was sent",
            ),
            (
                404,
                "RevisionNotFound",
                None,
                true,
                ErrorKind::NotFound,
                "no revision v9",
            ),
            (
                404,
                "EntryNotFound",
                Some("f"),
                true,
                ErrorKind::NotFound,
                "no file \"f\"",
            ),
            (
                404,
                "",
                Some("f"),
                true,
                ErrorKind::NotFound,
                "no file \"f\"",
            ),
            (
                404,
                "",
                None,
                true,
                ErrorKind::NotFound,
                "no model org/name",
            ),
            (401, "", None, false, ErrorKind::NotFound, "private"),
            (
                401,
                "RepoNotFound",
                None,
                true,
                ErrorKind::NotFound,
                "private",
            ),
            (401, "", None, true, ErrorKind::Denied, "expired"),
            (403, "", None, true, ErrorKind::Denied, "forbidden"),
            (418, "", None, true, ErrorKind::Network, "418"),
        ] {
            let refused = Refused {
                status: StatusCode::from_u16(status).unwrap(),
                code: code.to_owned(),
                url: "http://h/x".to_owned(),
            };
            let asked = Asked {
                endpoint: "http://h/",
                id: "org/name",
                revision: "v9",
                file,
                has_token,
            };
            let error = explain(&refused, asked);
            assert_eq!(error.kind(), kind, "{status} {code}: {error}");
            assert!(
                error.to_string().contains(words),
                "{status} {code}: {error}"
            );
            assert!(error.remedy().is_some(), "{status} {code}");
        }
    }
}
