//! A Hub on loopback: a real HTTP server that speaks the part of the Hub's interface that clients
//! use, and that misbehaves where a test says so, down to the byte.
//!
//! Large files are redirected from `127.0.0.1`, the Hub, to `localhost`, the storage, which is
//! another host to every client. The storage refuses whoever sends it a token.

#![allow(dead_code, missing_docs)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sha2::Digest as _;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const ID: &str = "org/name";
pub const TOKEN: &str = "hf_loopback_secret";

/// Something that goes wrong with the next request that matches.
#[derive(Debug, Clone)]
pub enum Fault {
    /// An answer with this status and these headers, without more.
    Status(u16, Vec<(&'static str, String)>),
    /// So many bytes of the body, then the connection is reset.
    Reset(usize),
    /// So many bytes of the body, then an orderly end.
    Short(usize),
    /// So many bytes of the body, then nothing, on an open connection.
    Stall(usize),
    /// The body, with one byte of it changed.
    WrongByte(usize),
    /// More bytes than are declared or asked for.
    Longer(usize),
    /// The whole file where a range was asked for.
    IgnoreRange,
    /// From now on the file is another one, with another tag.
    Change,
}

#[derive(Debug, Clone)]
pub struct File {
    pub bytes: Arc<Vec<u8>>,
    pub large: bool,
    /// The tag that the storage uses.
    pub tag: String,
    /// The digest and size that the Hub lists, where they are not the true ones.
    pub listed_etag: Option<String>,
    pub listed_size: Option<u64>,
}

impl File {
    pub fn etag(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        if let Some(listed) = &self.listed_etag {
            return listed.clone();
        }
        if self.large {
            hex(&sha2::Sha256::digest(&*self.bytes))
        } else {
            let mut hasher = sha1::Sha1::new();
            hasher.update(format!("blob {}\0", self.bytes.len()));
            hasher.update(&*self.bytes);
            hex(&hasher.finalize())
        }
    }

    fn size(&self) -> u64 {
        self.listed_size.unwrap_or(self.bytes.len() as u64)
    }
}

#[derive(Debug, Default)]
pub struct State {
    /// The only model there is.
    pub id: String,
    pub files: BTreeMap<String, File>,
    /// Part of the path of a request, and what is wrong with it, in turn.
    faults: VecDeque<(String, Fault)>,
    /// `METHOD path range` of every request.
    pub requests: Vec<String>,
    /// Requests to the storage that had a token.
    pub leaked: usize,
    /// Whether the model is shown only to those who have the token.
    pub private: bool,
    pub gated: bool,
    /// Files on a page of the list.
    pub page: usize,
    /// What branches and tags are at.
    pub commit: String,
    /// Body bytes that were sent.
    pub sent: u64,
    /// The pause after every 16 KiB of a body.
    pub pause: Option<Duration>,
}

pub struct FakeHub {
    port: u16,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

impl FakeHub {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            id: ID.to_owned(),
            page: 2,
            commit: COMMIT.to_owned(),
            ..State::default()
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, ended) = (Arc::clone(&state), Arc::clone(&stop));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(connection) = connection else { continue };
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(connection, port, &state));
            }
        });
        Self { port, state, stop }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }

    pub fn put(&self, path: &str, bytes: Vec<u8>, large: bool) {
        let file = File {
            tag: format!("\"storage-{}\"", bytes.len()),
            bytes: Arc::new(bytes),
            large,
            listed_etag: None,
            listed_size: None,
        };
        self.state().files.insert(path.to_owned(), file);
    }

    /// The next request whose line holds `part` meets this fault.
    pub fn fault(&self, part: &str, fault: Fault) {
        self.state().faults.push_back((part.to_owned(), fault));
    }

    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    pub fn faults_left(&self) -> usize {
        self.state().faults.len()
    }

    /// A model of two shards of random-looking weights, with index, configuration and tokenizer.
    pub fn with_model(shard_bytes: usize) -> Self {
        let hub = Self::new();
        let mut map = Vec::new();
        for shard in 1..=2 {
            let name = format!("model-0000{shard}-of-00002.safetensors");
            let tensor = format!("model.layers.{}.weight", shard - 1);
            map.push(format!("\"{tensor}\":\"{name}\""));
            hub.put(&name, safetensors(&tensor, shard_bytes, shard as u64), true);
        }
        let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", map.join(","));
        hub.put("model.safetensors.index.json", index.into_bytes(), false);
        hub.put("config.json", b"{\"model_type\":\"test\"}".to_vec(), false);
        hub.put("tokenizer.json", b"{\"tok\":1}".to_vec(), false);
        hub.put("consolidated.safetensors", safetensors("c", 64, 9), true);
        hub.put("README.md", b"# a model".to_vec(), false);
        hub.put("original/params.bin", vec![7; 100], true);
        hub
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the listener, so that it sees it.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// A SafeTensors file with one tensor of `len` bytes.
pub fn safetensors(tensor: &str, len: usize, seed: u64) -> Vec<u8> {
    let json = format!(
        "{{\"{tensor}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[0,{len}]}}}}"
    );
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    file.extend((0..len).map(|_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    }));
    file
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some(Request {
        method,
        path,
        headers,
    })
}

fn serve(connection: TcpStream, port: u16, state: &Mutex<State>) {
    let _ = connection.set_nodelay(true);
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut out = connection;
    while let Some(request) = read_request(&mut reader) {
        if !answer(&request, &mut out, port, state) {
            return;
        }
    }
}

/// Answers, and says whether the connection can be used again.
fn answer(request: &Request, out: &mut TcpStream, port: u16, state: &Mutex<State>) -> bool {
    let range = request.headers.get("range").cloned();
    let line = format!(
        "{} {} {}",
        request.method,
        request.path,
        range.as_deref().unwrap_or("")
    );
    let (fault, known) = {
        let mut state = state.lock().unwrap_or_else(|error| error.into_inner());
        state.requests.push(line.trim().to_owned());
        let at = state
            .faults
            .iter()
            .position(|(part, _)| line.contains(part));
        let fault = at
            .and_then(|at| state.faults.remove(at))
            .map(|(_, fault)| fault);
        let token = request.headers.get("authorization");
        (fault, token.is_some_and(|token| token.contains(TOKEN)))
    };
    if let Some(Fault::Status(status, headers)) = &fault {
        let headers: Vec<(&str, String)> = headers.clone();
        return reply(out, *status, &headers, b"refused", request).is_ok();
    }
    let path = request
        .path
        .split('?')
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut locked = state.lock().unwrap_or_else(|error| error.into_inner());
    let host = request.headers.get("host").cloned().unwrap_or_default();
    if let Some(name) = path.strip_prefix("/storage/") {
        if request.headers.contains_key("authorization") {
            locked.leaked += 1;
            drop(locked);
            return reply(out, 400, &[], b"no tokens here", request).is_ok();
        }
        assert!(host.starts_with("localhost"), "{host}");
        let Some(file) = locked.files.get_mut(name) else {
            drop(locked);
            return reply(out, 404, &[], b"", request).is_ok();
        };
        if matches!(fault, Some(Fault::Change)) {
            let mut bytes = file.bytes.to_vec();
            bytes[0] ^= 1;
            file.bytes = Arc::new(bytes);
            file.tag = "\"storage-changed\"".to_owned();
        }
        let (bytes, tag) = (Arc::clone(&file.bytes), file.tag.clone());
        drop(locked);
        return send(out, request, &bytes, &[("ETag", tag)], fault, state);
    }
    if (locked.private || locked.gated) && !known {
        let (status, code) = match locked.gated {
            true => (403, "GatedRepo"),
            false => (401, "RepoNotFound"),
        };
        // The list of a gated model is open to all.
        if !locked.gated || path.contains("/resolve/") {
            drop(locked);
            let headers = [("X-Error-Code", code.to_owned())];
            return reply(out, status, &headers, b"", request).is_ok();
        }
    }
    let refuse = |out: &mut TcpStream, code: &str| {
        let headers = [("X-Error-Code", code.to_owned())];
        reply(out, 404, &headers, b"", request).is_ok()
    };
    let id = locked.id.clone();
    let model = format!("/api/models/{id}");
    if let Some(rest) = path.strip_prefix(&model) {
        let known_revision = |locked: &State, revision: &str| {
            let commit = [COMMIT, &*locked.commit].contains(&revision);
            commit || ["main", "v1", "refs%2Fpr%2F1"].contains(&revision)
        };
        let revision = rest.strip_prefix("/revision/").unwrap_or("main");
        if rest.is_empty() || rest.starts_with("/revision/") {
            if !known_revision(&locked, revision) {
                return refuse(out, "RevisionNotFound");
            }
            let siblings: Vec<String> = locked
                .files
                .keys()
                .map(|name| format!("{{\"rfilename\":\"{name}\"}}"))
                .collect();
            let body = format!(
                "{{\"id\":\"{id}\",\"modelId\":\"{id}\",\"private\":false,\"downloads\":0,\"likes\":0,\"tags\":[],\"sha\":\"{}\",\"siblings\":[{}]}}",
                locked.commit,
                siblings.join(",")
            );
            drop(locked);
            return reply(out, 200, &[], body.as_bytes(), request).is_ok();
        }
        if let Some(revision) = rest.strip_prefix("/tree/") {
            if !known_revision(&locked, revision) {
                return refuse(out, "RevisionNotFound");
            }
            return list(out, request, locked, port);
        }
    }
    if let Some(rest) = path.strip_prefix(&format!("/{id}/resolve/")) {
        let Some((_, name)) = rest.split_once('/') else {
            return refuse(out, "EntryNotFound");
        };
        let Some(file) = locked.files.get(name).cloned() else {
            return refuse(out, "EntryNotFound");
        };
        let commit = locked.commit.clone();
        drop(locked);
        let etag = format!("\"{}\"", file.etag());
        if request.headers.get("if-none-match") == Some(&etag) {
            return reply(out, 304, &[("ETag", etag)], b"", request).is_ok();
        }
        if file.large {
            let location = format!("http://localhost:{port}/storage/{name}?X-Signature=secret");
            let headers = [
                ("Location", location),
                ("X-Linked-Etag", etag),
                ("X-Linked-Size", file.size().to_string()),
                ("X-Repo-Commit", commit),
            ];
            return reply(out, 302, &headers, b"Found", request).is_ok();
        }
        let headers = [("ETag", etag), ("X-Repo-Commit", commit)];
        return send(out, request, &file.bytes, &headers, fault, state);
    }
    drop(locked);
    refuse(out, "RepoNotFound")
}

/// A page of the list of files.
fn list(out: &mut TcpStream, request: &Request, locked: MutexGuard<'_, State>, port: u16) -> bool {
    let query = request.path.split_once('?').map_or("", |(_, query)| query);
    let cursor: usize = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("cursor=")?.parse().ok())
        .unwrap_or(0);
    let entries = locked.files.iter().skip(cursor).take(locked.page);
    let entries: Vec<String> = entries
        .map(|(path, file)| {
            let (size, etag) = (file.size(), file.etag());
            match file.large {
                true => format!(
                    "{{\"type\":\"file\",\"path\":\"{path}\",\"size\":{size},\"oid\":\"{}\",\"lfs\":{{\"oid\":\"{etag}\",\"size\":{size},\"pointerSize\":134}}}}",
                    "f".repeat(40)
                ),
                false => format!("{{\"type\":\"file\",\"path\":\"{path}\",\"size\":{size},\"oid\":\"{etag}\"}}"),
            }
        })
        .collect();
    let next = cursor + locked.page;
    let more = next < locked.files.len();
    let body = format!("[{}]", entries.join(","));
    drop(locked);
    let path = request.path.split('?').next().unwrap_or_default();
    let mut headers = Vec::new();
    if more {
        let next =
            format!("<http://127.0.0.1:{port}{path}?recursive=true&cursor={next}>; rel=\"next\"");
        headers.push(("Link", next));
    }
    reply(out, 200, &headers, body.as_bytes(), request).is_ok()
}

fn reply(
    out: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
    request: &Request,
) -> std::io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    out.write_all(head.as_bytes())?;
    match request.method == "HEAD" || status == 304 {
        true => Ok(()),
        false => out.write_all(body),
    }
}

/// Sends a file or a range of it, with what is to go wrong.
fn send(
    out: &mut TcpStream,
    request: &Request,
    bytes: &[u8],
    headers: &[(&str, String)],
    fault: Option<Fault>,
    state: &Mutex<State>,
) -> bool {
    let total = bytes.len();
    let asked = request.headers.get("range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let last = last.parse().unwrap_or(usize::MAX);
        Some((first.parse::<usize>().ok()?, last))
    });
    let asked = asked.filter(|_| !matches!(fault, Some(Fault::IgnoreRange)));
    let mut headers = headers.to_vec();
    let (status, mut body) = match asked {
        Some((first, _)) if first >= total => {
            headers.push(("Content-Range", format!("bytes */{total}")));
            return reply(out, 416, &headers, b"", request).is_ok();
        }
        Some((first, last)) => {
            let last = last.min(total - 1);
            headers.push(("Content-Range", format!("bytes {first}-{last}/{total}")));
            (206, bytes[first..=last].to_vec())
        }
        None => (200, bytes.to_vec()),
    };
    let declared = body.len();
    if let Some(Fault::WrongByte(at)) = fault {
        let at = at.min(body.len() - 1);
        body[at] ^= 1;
    }
    if let Some(Fault::Longer(by)) = fault {
        body.extend(std::iter::repeat_n(0, by));
    }
    let mut head = format!("HTTP/1.1 {status} Status\r\n");
    // A body that is longer than declared would be cut by the client's HTTP library.
    match fault {
        Some(Fault::Longer(_)) => head.push_str("Connection: close\r\n"),
        _ => head.push_str(&format!("Content-Length: {declared}\r\n")),
    }
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    if out.write_all(head.as_bytes()).is_err() {
        return false;
    }
    if request.method == "HEAD" {
        return true;
    }
    let count = |len: usize| {
        state.lock().unwrap_or_else(|error| error.into_inner()).sent += len as u64;
    };
    match fault {
        Some(Fault::Reset(after) | Fault::Short(after)) => {
            let part = &body[..after.min(body.len())];
            count(part.len());
            let _ = out.write_all(part).and_then(|()| out.flush());
            if matches!(fault, Some(Fault::Reset(_))) {
                reset(out);
            }
            false
        }
        Some(Fault::Stall(after)) => {
            let part = &body[..after.min(body.len())];
            count(part.len());
            let _ = out.write_all(part).and_then(|()| out.flush());
            // Until the client has enough of it and closes the connection.
            let _ = out.read(&mut [0]);
            false
        }
        _ => {
            let pause = state
                .lock()
                .unwrap_or_else(|error| error.into_inner())
                .pause;
            for part in body.chunks(16 << 10) {
                count(part.len());
                if out.write_all(part).is_err() {
                    return false;
                }
                if let Some(pause) = pause {
                    std::thread::sleep(pause);
                }
            }
            !matches!(fault, Some(Fault::Longer(_)))
        }
    }
}

/// Ends the connection with a reset: what the client has not read yet is lost.
fn reset(out: &TcpStream) {
    let socket = socket2::SockRef::from(out);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}
