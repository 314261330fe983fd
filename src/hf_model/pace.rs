//! How patient downloads are, and how much they do at once.

use std::time::Duration;

/// How patient a client is, and how much it does at once.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pace {
    /// Until a connection is there; 10 s.
    pub connect: Duration,
    /// Until an answer about a model is there; 10 s, as in the Hub's own tools.
    pub answer: Duration,
    /// How long a download may bring nothing before it is begun again where it stopped; 30 s.
    pub stall: Duration,
    /// Tries after the first one that may fail in a row; 5. Every byte that comes begins the count
    /// again.
    pub tries: u32,
    /// The pause before the second try, which doubles with each further one up to 30 s; 0.5 s.
    pub backoff: Duration,
    /// The longest pause that a server may ask for (`Retry-After`); 5 minutes.
    pub retry_after: Duration,
    /// How long the holder of a lock may get nowhere; 10 minutes, as a digest of a large file
    /// takes its time, too.
    pub lock: Duration,
    /// Files at once; 4.
    pub files: usize,
    /// Requests for data at once, all files together; 8.
    pub connections: usize,
    /// Ranges of one file at once; 4. With [`chunk_bytes`](Self::chunk_bytes) and
    /// [`files`](Self::files) it bounds the memory for what comes out of order: 128 MiB.
    pub window: usize,
    /// The length of a range, in bytes; 8 MiB.
    pub chunk_bytes: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            tries: 5,
            backoff: Duration::from_millis(500),
            retry_after: Duration::from_secs(300),
            lock: Duration::from_secs(600),
            files: 4,
            connections: 8,
            window: 4,
            chunk_bytes: 8 << 20,
        }
    }
}
