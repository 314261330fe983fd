//! Two questions to the Hub: which commit a revision is, and which files it has.

use std::collections::HashSet;

use reqwest::Url;
use reqwest::header::{HeaderMap, LINK};
use serde::{Deserialize, Serialize};

use super::cache::is_commit;
use super::http::{Failure, Session, shown};
use super::refusal::{self, Asked};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::index::safe_relative;

/// Longest answer that is read, in bytes: a page of a thousand files has some hundred thousand.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Files of a repository at most, and pages of their list.
const MAX_FILES: usize = 1_000_000;
const MAX_PAGES: usize = 10_000;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RemoteFile {
    /// Relative, with `/` between components, and safe.
    pub(super) path: String,
    /// In bytes.
    pub(super) size: u64,
    /// What the blob is called: its digest.
    pub(super) etag: String,
}

/// What the name of a blob is the digest of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digest {
    /// The bytes, by SHA-256: large files.
    Sha256,
    /// The bytes as a git object, by SHA-1: small files.
    Git,
}

impl RemoteFile {
    pub(super) fn digest(&self) -> Digest {
        match self.etag.len() {
            40 => Digest::Git,
            _ => Digest::Sha256,
        }
    }
}

#[derive(Deserialize)]
struct RevisionInfo {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<LfsEntry>,
}

#[derive(Deserialize)]
struct LfsEntry {
    oid: String,
    size: u64,
}

/// The commit that `revision` of a model is at.
pub(super) async fn commit(
    session: &Session,
    id: &str,
    revision: &str,
    tries: u32,
) -> Result<String> {
    let parts = ["api", "models"].into_iter().chain(id.split('/'));
    let url = session.url(parts.chain(["revision", revision]));
    let (body, _) = ask(session, &url, id, revision, tries).await?;
    let info: RevisionInfo = parse(&url, &body)?;
    if is_commit(&info.sha) {
        return Ok(info.sha.to_ascii_lowercase());
    }
    let message = format!(
        "the Hub names {} as the commit",
        crate::text::quoted(&info.sha)
    );
    Err(not_a_hub(&url, message))
}

/// All files of a commit. What has no safe path or no digest is left out: nobody could load it.
pub(super) async fn files(session: &Session, id: &str, commit: &str) -> Result<Vec<RemoteFile>> {
    let parts = ["api", "models"].into_iter().chain(id.split('/'));
    let mut url = session.url(parts.chain(["tree", commit]));
    url.query_pairs_mut().append_pair("recursive", "true");
    let (mut files, mut seen) = (Vec::new(), HashSet::new());
    loop {
        if seen.len() >= MAX_PAGES || files.len() > MAX_FILES || !seen.insert(url.clone()) {
            return Err(not_a_hub(&url, "the list of files has no end".to_owned()));
        }
        let (body, headers) = ask(session, &url, id, commit, session.pace.tries).await?;
        let entries: Vec<Entry> = parse(&url, &body)?;
        files.extend(entries.into_iter().filter_map(remote_file));
        match next_page(&headers).map(|next| url.join(&next)) {
            None => break,
            Some(Ok(next)) => url = next,
            Some(Err(_)) => {
                return Err(not_a_hub(&url, "the next page has no address".to_owned()));
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

async fn ask(
    session: &Session,
    url: &Url,
    id: &str,
    revision: &str,
    tries: u32,
) -> Result<(Vec<u8>, HeaderMap)> {
    session
        .body(url, MAX_ANSWER_BYTES, tries)
        .await
        .map_err(|failure| match failure {
            Failure::Refused(refused) => refusal::explain(
                &refused,
                Asked {
                    endpoint: &shown(&session.endpoint),
                    id,
                    revision,
                    file: None,
                    has_token: session.has_token(),
                },
            ),
            other => other.into(),
        })
}

fn remote_file(entry: Entry) -> Option<RemoteFile> {
    let is_hex = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    if entry.kind != "file" {
        return None;
    }
    let (etag, size) = match &entry.lfs {
        Some(lfs) => (lfs.oid.trim_start_matches("sha256:"), lfs.size),
        None => (&*entry.oid, entry.size),
    };
    let len = if entry.lfs.is_some() { 64 } else { 40 };
    // Addresses drop tabs and line ends: such a file could not be asked for.
    let safe = safe_relative(&entry.path).is_ok_and(|path| *path == *entry.path)
        && !entry.path.contains(|c: char| c.is_control());
    if !safe || !is_hex(etag, len) {
        tracing::debug!(path = %crate::text::name(&entry.path), "a file without a safe path or a digest");
        return None;
    }
    Some(RemoteFile {
        etag: etag.to_ascii_lowercase(),
        size,
        path: entry.path,
    })
}

/// The address in `<address>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let links = headers.get_all(LINK).iter();
    links
        .filter_map(|links| links.to_str().ok())
        .flat_map(|links| links.split(','))
        .find_map(|link| {
            let (address, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
            let is_next = |part: &str| matches!(part.trim(), "rel=\"next\"" | "rel=next");
            rest.split(';').any(is_next).then(|| address.to_owned())
        })
}

fn parse<'a, T: Deserialize<'a>>(url: &Url, body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("an answer of {} bytes is not what a Hub sends", body.len());
        not_a_hub(url, message).because(error)
    })
}

fn not_a_hub(url: &Url, message: String) -> Error {
    Error::new(ErrorKind::Network, format!("{}: {message}", shown(url)))
        .help("see that HF_ENDPOINT is a Hub, and that no proxy answers for it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_links() {
        let page = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(LINK, text.parse().unwrap());
            next_page(&headers)
        };
        let next = Some("https://h/api?cursor=a%3D".to_owned());
        assert_eq!(page("<https://h/api?cursor=a%3D>; rel=\"next\""), next);
        assert_eq!(
            page("</first>; rel=\"first\", <https://h/api?cursor=a%3D>; rel=next"),
            next
        );
        assert_eq!(page("</first>; rel=\"first\""), None);
        assert_eq!(page("nonsense"), None);
        assert_eq!(next_page(&HeaderMap::new()), None);
    }

    #[test]
    fn files_need_a_safe_path_and_a_digest() {
        let sha1 = "a".repeat(40);
        let file = |json: String| remote_file(serde_json::from_str(&json).unwrap());
        let small = file(format!(
            r#"{{"type":"file","path":"a/b.json","size":3,"oid":"{sha1}"}}"#
        ))
        .unwrap();
        assert_eq!((small.size, small.digest()), (3, Digest::Git));
        let large = file(format!(
            r#"{{"type":"file","path":"w","size":9,"oid":"{sha1}","lfs":{{"oid":"sha256:{}","size":7,"pointerSize":1}}}}"#,
            "B".repeat(64)
        ))
        .unwrap();
        assert_eq!((large.size, large.digest()), (7, Digest::Sha256));
        assert_eq!(large.etag, "b".repeat(64));
        for (kind, path, oid) in [
            ("directory", "a", &*sha1),
            ("file", "../a", &sha1),
            ("file", "/a", &sha1),
            ("file", "a/../../b", &sha1),
            ("file", "a\\\\b", &sha1),
            ("file", "a", "../../x"),
            ("file", "a", ""),
        ] {
            let json = format!(r#"{{"type":"{kind}","path":"{path}","size":1,"oid":"{oid}"}}"#);
            assert_eq!(file(json), None, "{kind} {path} {oid}");
        }
    }
}
