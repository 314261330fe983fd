//! Traces: everything a load did is in them, once, in the format that viewers read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tensora::storage::{Fault, FaultSource, MemorySource, Source};
use tensora::{
    BackendKind, Checkpoint, Dtype, Layout, LoadReport, Loader, Selection, Settings, Slice, Trace,
};

use crate::support::{Sample, Watchdog, backends, block_on, safetensors, settings};

/// In place, misaligned, empty, strided when sliced, and of several chunks.
const TENSORS: &[(&str, Dtype, &[u64])] = &[
    ("a.big", Dtype::F32, &[64, 1024]),
    ("b.bytes", Dtype::U8, &[4099]),
    ("c.odd", Dtype::F32, &[3000]),
    ("d.empty", Dtype::F32, &[0, 7]),
    ("e.rows", Dtype::U16, &[96, 640]),
];

fn written(trace: &Trace) -> Value {
    let mut json = Vec::new();
    trace.write_chrome(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// The events of a phase, `M` for metadata, `X` for spans, `b` and `e` for what overlaps.
fn of_phase<'a>(json: &'a Value, phase: &str) -> Vec<&'a Value> {
    let events = json["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["ph"] == phase).collect()
}

fn named<'a>(json: &'a Value, name: &str) -> Vec<&'a Value> {
    let events = json["traceEvents"].as_array().unwrap().iter();
    let is = |event: &&Value| event["name"] == name && event["ph"] != "e";
    events.filter(is).collect()
}

fn sum(events: &[&Value], key: &str) -> u64 {
    events
        .iter()
        .map(|event| event["args"][key].as_u64().unwrap())
        .sum()
}

/// What viewers need of every event; that spans of one thread follow each other; that what begins
/// ends once, and later.
#[track_caller]
fn check_format(what: &str, json: &Value) {
    let mut threads: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut open: BTreeMap<String, f64> = BTreeMap::new();
    let mut named_threads = BTreeSet::new();
    for event in json["traceEvents"].as_array().unwrap() {
        let number = |key: &str| {
            event[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key}: {event}"))
        };
        let thread = (number("pid") as u64, number("tid") as u64);
        assert!(
            event["name"].is_string() && event["args"].is_object(),
            "{event}"
        );
        let start = number("ts");
        if event["ph"] != "M" {
            assert!(event["cat"].is_string(), "{what}: {event}");
        }
        match event["ph"].as_str().unwrap() {
            "M" if event["name"] == "thread_name" => {
                named_threads.insert(thread);
            }
            "M" => {}
            "X" => {
                let duration = number("dur");
                assert!(duration >= 0.0 && number("tts") >= 0.0 && number("tdur") >= 0.0);
                threads
                    .entry(thread)
                    .or_default()
                    .push((start, start + duration));
            }
            "b" => {
                let earlier = open.insert(event["id"].as_str().unwrap().to_owned(), start);
                assert!(earlier.is_none(), "{what}: began twice: {event}");
            }
            "e" => {
                let began = open.remove(event["id"].as_str().unwrap());
                assert!(began.is_some_and(|began| began <= start), "{what}: {event}");
            }
            other => panic!("{what}: phase {other}"),
        }
    }
    assert!(open.is_empty(), "{what}: {open:?} never end");
    for (thread, mut spans) in threads {
        assert!(
            named_threads.contains(&thread),
            "{what}: {thread:?} has no name"
        );
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in spans.windows(2) {
            // Doubles hold microseconds to well below a nanosecond.
            assert!(
                pair[0].1 <= pair[1].0 + 1e-3,
                "{what}: {pair:?} overlap on {thread:?}"
            );
        }
    }
}

/// The trace says what the report says.
#[track_caller]
fn check_against_report(what: &str, json: &Value, trace: &Trace, report: &LoadReport) {
    let reads = named(json, "read");
    assert_eq!(reads.len() as u64, report.reads, "{what}: reads");
    assert_eq!(sum(&reads, "bytes"), report.read_bytes, "{what}: bytes");
    let overlaps = report.decision.backend == BackendKind::IoUring;
    assert!(
        reads
            .iter()
            .all(|read| read["ph"] == if overlaps { "b" } else { "X" }),
        "{what}"
    );
    let direct: Vec<_> = reads
        .iter()
        .copied()
        .filter(|read| read["args"]["access"] == "direct")
        .collect();
    assert_eq!(sum(&direct, "bytes"), report.direct_bytes, "{what}: direct");
    let copied = sum(&named(json, "copy out of staging"), "bytes");
    assert_eq!(copied, report.staged_bytes, "{what}: staged");
    let mapped = sum(&named(json, "populate"), "len");
    assert_eq!(mapped, report.mapped_bytes, "{what}: mapped");
    let delivered = named(json, "deliver");
    assert_eq!(delivered.len() as u64, report.tensors, "{what}: deliveries");
    assert_eq!(
        sum(&delivered, "bytes"),
        report.bytes,
        "{what}: delivered bytes"
    );

    let about = &json["otherData"]["loads"][0];
    assert_eq!(about["decision"]["backend"], report.decision.backend.name());
    assert_eq!(about["decision"]["reason"], report.decision.reason.as_str());

    let summary = trace.summary();
    let total = &summary.total;
    assert_eq!(
        (total.reads, total.read_bytes),
        (report.reads, report.read_bytes)
    );
    assert_eq!(total.staged_bytes, report.staged_bytes);
    assert!(!summary.workers.is_empty(), "{what}");
    for worker in &summary.workers {
        let spent = &worker.spent;
        let times = [
            spent.disk_wait_ms,
            spent.copy_ms,
            spent.fault_ms,
            spent.budget_wait_ms,
            spent.idle_ms,
        ];
        assert!(
            times.iter().all(|ms| *ms >= 0.0 && ms.is_finite()),
            "{what}: {worker:?}"
        );
        let all: f64 = times.iter().sum();
        assert!(
            all >= summary.elapsed_ms * 0.999,
            "{what}: {worker:?} of {}",
            summary.elapsed_ms
        );
    }
    let line = summary.to_string();
    assert!(line.contains("disk wait") && !line.contains('\n'), "{line}");
    let as_json = serde_json::to_value(&summary).unwrap();
    assert_eq!(as_json["total"]["reads"], report.reads);
    assert!(as_json["workers"][0]["name"].is_string());
}

/// Loads with a trace of its own, and gives it.
fn load(loader: &Loader) -> (Trace, LoadReport) {
    let trace = Trace::new();
    let report = loader
        .clone()
        .trace(&trace)
        .load()
        .unwrap()
        .report()
        .clone();
    (trace, report)
}

#[test]
fn every_backend_writes_down_what_it_reports() {
    let _dog = Watchdog::new("traces of every backend");
    for pad in [0, 1] {
        let sample = Sample::single(TENSORS, pad);
        let columns = Slice::Shard {
            dim: 1,
            rank: 1,
            world: 4,
            split: tensora::Split::Even,
        };
        let sliced = Selection::all().with_slice("e.rows", columns).unwrap();
        for backend in backends() {
            for selection in [Selection::all(), sliced.clone()] {
                let what = format!("{backend}, {pad} bytes of padding, {selection:?}");
                let loader = sample
                    .checkpoint
                    .loader()
                    .select(selection)
                    .settings(settings(backend));
                let expected = loader.schedule().unwrap().explain();
                let (trace, report) = load(&loader);
                let json = written(&trace);
                check_format(&what, &json);
                check_against_report(&what, &json, &trace, &report);
                if backend != BackendKind::Mmap {
                    // Local files answer in full: one event for each read of the schedule.
                    let reads = named(&json, "read");
                    let places: BTreeSet<_> = reads
                        .iter()
                        .map(|read| read["args"]["offset"].as_u64().unwrap())
                        .collect();
                    assert_eq!(places.len() as u64, expected.requests, "{what}");
                    assert_eq!(reads.len() as u64, expected.requests, "{what}");
                    let file = sample.path(0).display().to_string();
                    assert!(
                        reads
                            .iter()
                            .all(|read| read["args"]["file"] == file.as_str())
                    );
                }
                let names: BTreeSet<_> = named(&json, "deliver")
                    .iter()
                    .map(|event| event["args"]["tensor"].as_str().unwrap())
                    .collect();
                assert_eq!(names, TENSORS.iter().map(|(name, _, _)| *name).collect());
            }
        }
    }
}

#[test]
fn every_way_of_loading_is_traced_and_loads_add_up() {
    let _dog = Watchdog::new("traces of every way");
    let sample = Sample::single(TENSORS, 0);
    for backend in backends() {
        let trace = Trace::new();
        let loader = sample
            .checkpoint
            .loader()
            .settings(settings(backend))
            .trace(&trace);
        let mut reads = loader.load().unwrap().report().reads;
        reads += block_on(loader.load_async()).unwrap().report().reads;
        let mut stream = loader.stream().unwrap();
        assert!(stream.by_ref().all(|tensor| tensor.is_ok()));
        reads += stream.report().reads;
        let mut memory: Vec<_> = sample
            .all()
            .into_iter()
            .map(|(name, (_, bytes))| (name, vec![0; bytes.len()]))
            .collect();
        let buffers = memory
            .iter_mut()
            .map(|(name, bytes)| (name.as_str(), &mut bytes[..]));
        reads += loader.load_into(buffers).unwrap().reads;
        let json = written(&trace);
        check_format(backend.name(), &json);
        assert_eq!(named(&json, "read").len() as u64, reads, "{backend}");
        assert_eq!(named(&json, "prepare").len(), 4);
        assert_eq!(named(&json, "deliver").len(), 4 * TENSORS.len());
        let summary = trace.summary();
        assert_eq!((summary.loads, summary.total.reads), (4, reads));
        assert_eq!(json["otherData"]["loads"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn reads_without_an_answer_are_told_from_those_with_one() {
    let _dog = Watchdog::new("traces of faults");
    let bytes = safetensors(TENSORS, 3, 0);
    for backend in backends() {
        let memory: Arc<dyn Source> = Arc::new(MemorySource::new("m.safetensors", bytes.clone()));
        let faulty = FaultSource::new(memory, |number, _, _| match number % 3 {
            0 => Fault::Short(1000),
            1 => Fault::Error(std::io::ErrorKind::Interrupted),
            _ => Fault::None,
        });
        let sources: Vec<Arc<dyn Source>> = vec![Arc::new(faulty)];
        let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, sources, None).unwrap();
        let (trace, report) = load(&checkpoint.loader().settings(settings(backend)));
        let json = written(&trace);
        check_format(backend.name(), &json);
        check_against_report(backend.name(), &json, &trace, &report);
        let failed = named(&json, "read without an answer");
        assert!(!failed.is_empty());
        assert!(failed.iter().all(|read| read["args"]["error"].is_string()));
    }
}

#[test]
fn waiting_for_a_budget_is_seen() {
    let _dog = Watchdog::new("traces of a budget");
    let names: Vec<String> = (0..12).map(|number| format!("t{number:02}")).collect();
    let shape = [1 << 20];
    let list: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), Dtype::U8, &shape[..]))
        .collect();
    let sample = Sample::single(&list, 0);
    for backend in backends() {
        let trace = Trace::new();
        let loader = sample
            .checkpoint
            .loader()
            .backend(backend)
            .budget(1 << 20)
            .trace(&trace);
        for tensor in loader.stream().unwrap() {
            tensor.unwrap();
            // Long enough for the readers to come to the end of the budget, in one of the turns.
            std::thread::sleep(Duration::from_millis(5));
        }
        let json = written(&trace);
        check_format(backend.name(), &json);
        assert!(!named(&json, "wait for the budget").is_empty(), "{backend}");
        assert!(trace.summary().total.budget_wait_ms > 0.0, "{backend}");
    }
}

#[test]
fn a_trace_of_nothing_is_a_trace() {
    let trace = Trace::default();
    let json = written(&trace);
    assert_eq!(json["traceEvents"], serde_json::json!([]));
    assert!(trace.summary().to_string().starts_with("0 workers"));
    let sample = Sample::single(&[("empty", Dtype::F32, &[0])], 0);
    sample.checkpoint.loader().trace(&trace).load().unwrap();
    let json = written(&trace);
    check_format("nothing to read", &json);
    assert_eq!(of_phase(&json, "X").len(), 2);
    assert_eq!(trace.summary().workers, []);
}

#[test]
fn a_load_that_fails_leaves_what_it_did() {
    let sample = Sample::single(TENSORS, 0);
    let trace = Trace::new();
    let loader = sample
        .checkpoint
        .loader()
        .settings(Settings::default())
        .trace(&trace);
    let token = tensora::CancelToken::default();
    token.cancel();
    loader.cancel_with(token).load().unwrap_err();
    check_format("refused", &written(&trace));
    assert_eq!(trace.summary().total.reads, 0);
}
