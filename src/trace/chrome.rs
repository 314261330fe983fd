//! The trace-event format: a JSON object with an array of events, one to a line.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::storage::Access;
use crate::trace::record::{Answer, Event, Read, Recorder, What};
use crate::trace::summary::TraceSummary;

/// An event as the format spells it. Times in microseconds, with nanoseconds as fractions.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    cat: &'a str,
    /// `X`: a stretch of a thread's time; `b` and `e`: begin and end of what overlaps.
    ph: &'a str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// The thread's processor time at the start, and its growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    tts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tdur: Option<f64>,
    pid: usize,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    args: Value,
}

/// What a trace begins with.
pub(super) const START: &[u8] = b"{\"displayTimeUnit\":\"ms\",\n\"otherData\":";

pub(super) fn write(
    loads: &[Arc<Recorder>],
    summary: &TraceSummary,
    writer: &mut impl Write,
) -> io::Result<()> {
    let decisions: Vec<Value> = loads.iter().map(|load| about(load)).collect();
    let about = json!({
        "producer": concat!("tensora ", env!("CARGO_PKG_VERSION")),
        "loads": decisions,
        "summary": summary,
    });
    writer.write_all(START)?;
    write!(writer, "{about},\n\"traceEvents\":[")?;
    let mut lines = Lines {
        writer,
        first: true,
    };
    for (pid, load) in (1..).zip(loads) {
        write_load(&mut lines, pid, load)?;
    }
    writeln!(writer, "\n]}}")
}

struct Lines<'a, W> {
    writer: &'a mut W,
    first: bool,
}

impl<W: Write> Lines<'_, W> {
    fn add(&mut self, line: &impl Serialize) -> io::Result<()> {
        let separator: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.writer.write_all(separator)?;
        Ok(serde_json::to_writer(&mut *self.writer, line)?)
    }
}

fn write_load(lines: &mut Lines<'_, impl Write>, pid: usize, load: &Recorder) -> io::Result<()> {
    let backend = load.decision.backend;
    lines.add(&metadata(
        "process_name",
        pid,
        0,
        json!({"name": format!("load {pid}: {backend}")}),
    ))?;
    lines.add(&metadata(
        "process_labels",
        pid,
        0,
        json!({"labels": load.decision.reason}),
    ))?;
    let state = load.state();
    for (tid, name) in (1..).zip(&state.lanes) {
        lines.add(&metadata("thread_name", pid, tid, json!({"name": name})))?;
        lines.add(&metadata(
            "thread_sort_index",
            pid,
            tid,
            json!({"sort_index": tid}),
        ))?;
    }
    for (number, event) in state.events.iter().enumerate() {
        write_event(lines, pid, number, event, load)?;
    }
    Ok(())
}

fn write_event(
    lines: &mut Lines<'_, impl Write>,
    pid: usize,
    number: usize,
    event: &Event,
    load: &Recorder,
) -> io::Result<()> {
    let (name, cat, mut args) = describe(&event.what, load);
    let ts = micros_since(load.epoch, event.start);
    let line = |ph, args| Line {
        name,
        cat,
        ph,
        ts,
        dur: None,
        tts: None,
        tdur: None,
        pid,
        tid: event.lane + 1,
        id: None,
        args,
    };
    let Some(cost) = event.cost else {
        let id = Some(format!("{pid}.{number}"));
        lines.add(&Line {
            id: id.clone(),
            ..line("b", args)
        })?;
        return lines.add(&Line {
            id,
            ts: ts + micros(event.duration),
            ..line("e", json!({}))
        });
    };
    let faults = [
        ("minor_faults", cost.minor_faults),
        ("major_faults", cost.major_faults),
    ];
    for (key, count) in faults {
        if let Some(count) = count.filter(|&count| count > 0) {
            args[key] = count.into();
        }
    }
    lines.add(&Line {
        dur: Some(micros(event.duration)),
        tts: cost.cpu_at.map(micros),
        tdur: cost.cpu.map(micros),
        ..line("X", args)
    })
}

/// Name, category and details of an event.
fn describe(what: &What, load: &Recorder) -> (&'static str, &'static str, Value) {
    let file = |source: u32| {
        let path = &load.plan.sources[source as usize].path;
        path.display().to_string()
    };
    match what {
        What::Prepare => ("prepare", "prepare", json!({})),
        What::Read(read) => describe_read(read, &file(read.source)),
        What::Submit => ("submit", "ring", json!({})),
        What::Await => ("wait for the ring", "ring", json!({})),
        What::Populate {
            source,
            offset,
            len,
        } => {
            let args = json!({"file": file(*source), "offset": offset, "len": len});
            ("populate", "fault", args)
        }
        What::Copy { bytes, pieces } => (
            "copy out of staging",
            "copy",
            json!({"bytes": bytes, "pieces": pieces}),
        ),
        What::Allocate { bytes, memory } => (
            "allocate",
            "memory",
            json!({"bytes": bytes, "memory": memory}),
        ),
        What::Room { bytes } => ("wait for the budget", "budget", json!({"bytes": bytes})),
        What::Deliver { tensor } => {
            let planned = &load.plan.tensors[*tensor as usize];
            let args = json!({
                "tensor": planned.name,
                "bytes": planned.nbytes,
                "made_contiguous": planned.gather.is_some(),
            });
            ("deliver", "deliver", args)
        }
    }
}

fn describe_read(read: &Read, file: &str) -> (&'static str, &'static str, Value) {
    let access = match read.access {
        Access::Buffered => "buffered",
        Access::Direct => "direct",
    };
    let mut args = json!({
        "file": file, "offset": read.offset, "len": read.len, "access": access,
    });
    match &read.answer {
        Answer::Bytes(bytes) => {
            args["bytes"] = (*bytes).into();
            ("read", "read", args)
        }
        Answer::Error(error) => {
            args["error"] = error.as_str().into();
            ("read without an answer", "retry", args)
        }
    }
}

/// What is said of a load as a whole.
fn about(load: &Recorder) -> Value {
    let state = load.state();
    let bytes: u64 = load.plan.tensors.iter().map(|tensor| tensor.nbytes).sum();
    json!({
        "decision": load.decision,
        "tensors": load.plan.tensors.len(),
        "bytes": bytes,
        "started_us": micros_since(load.epoch, load.started),
        "ended_us": state.ended.map(|ended| micros_since(load.epoch, ended)),
    })
}

fn metadata(name: &str, pid: usize, tid: u32, args: Value) -> Value {
    json!({"name": name, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": args})
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn micros_since(epoch: Instant, moment: Instant) -> f64 {
    // A load may have been prepared before its trace was made.
    match moment.checked_duration_since(epoch) {
        Some(after) => micros(after),
        None => -micros(epoch - moment),
    }
}
