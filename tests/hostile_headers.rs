//! SafeTensors headers that are wrong in every way we could think of, and a few that only look so.

use std::sync::Arc;

use tensora::storage::{MemorySource, Source};
use tensora::{Checkpoint, Error, ErrorKind, Layout};

fn file(header: impl AsRef<[u8]>, data: usize) -> Vec<u8> {
    let header = header.as_ref();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new("mem.safetensors", bytes));
    Checkpoint::from_sources(Layout::SafeTensors, vec![source], None)
}

/// One tensor `w.0` with the given entry over `data` bytes.
fn entry(entry: &str, data: usize) -> Result<Checkpoint, Error> {
    open(file(format!(r#"{{"w.0": {entry}}}"#), data))
}

fn refused(opened: Result<Checkpoint, Error>, kind: ErrorKind, says: &[&str]) {
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for fact in says.iter().chain(&["mem.safetensors"]) {
        assert!(text.contains(fact), "{fact:?} is not in: {text}");
    }
}

#[test]
fn entries_with_wrong_fields_name_the_tensor_and_the_field() {
    use ErrorKind::{BadHeader, BadOffsets, ShapeMismatch, UnknownDtype};
    let cases: &[(&str, ErrorKind, &str)] = &[
        ("3", BadHeader, "object"),
        ("null", BadHeader, "object"),
        (r#"["F32", [1], [0, 4]]"#, BadHeader, "object"),
        ("{}", BadHeader, "dtype"),
        (
            r#"{"dtype":"F32","shape":[1]}"#,
            BadHeader,
            "no data_offsets",
        ),
        (
            r#"{"dtype":"F32","data_offsets":[0,4]}"#,
            BadHeader,
            "no shape",
        ),
        (
            r#"{"shape":[1],"data_offsets":[0,4]}"#,
            BadHeader,
            "no dtype",
        ),
        (
            r#"{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}"#,
            BadHeader,
            "more than once",
        ),
        (
            r#"{"dtype":32,"shape":[1],"data_offsets":[0,4]}"#,
            BadHeader,
            "dtype must",
        ),
        (
            r#"{"dtype":null,"shape":[1],"data_offsets":[0,4]}"#,
            BadHeader,
            "dtype must",
        ),
        (
            r#"{"dtype":"f32","shape":[1],"data_offsets":[0,4]}"#,
            UnknownDtype,
            "\"f32\"",
        ),
        (
            r#"{"dtype":"","shape":[1],"data_offsets":[0,4]}"#,
            UnknownDtype,
            "\"\"",
        ),
        (
            r#"{"dtype":"F32","shape":1,"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":[1e30],"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}"#,
            BadHeader,
            "shape must",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[]}"#,
            BadHeader,
            "data_offsets must",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
            BadHeader,
            "data_offsets must",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#,
            BadHeader,
            "tensor",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":{"a":0}}"#,
            BadHeader,
            "data_offsets must",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}"#,
            BadHeader,
            "data_offsets must",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}"#,
            BadHeader,
            "data_offsets must",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4],"dtype":"#,
            BadHeader,
            "JSON",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#,
            BadOffsets,
            "[4, 0]",
        ),
        (
            r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
            BadOffsets,
            "hole of 4 bytes",
        ),
        (
            r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#,
            ShapeMismatch,
            "takes 8 bytes",
        ),
        (
            r#"{"dtype":"F32","shape":[],"data_offsets":[0,0]}"#,
            ShapeMismatch,
            "takes 4 bytes",
        ),
        (
            r#"{"dtype":"F4","shape":[3],"data_offsets":[0,2]}"#,
            ShapeMismatch,
            "whole number",
        ),
        (
            r#"{"dtype":"F6_E2M3","shape":[1],"data_offsets":[0,1]}"#,
            ShapeMismatch,
            "whole number",
        ),
        (
            r#"{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#,
            ShapeMismatch,
            "4294967296",
        ),
        (
            r#"{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}"#,
            ShapeMismatch,
            "2305843009213693952",
        ),
    ];
    for (text, kind, says) in cases {
        refused(entry(text, 4), *kind, &["\"w.0\"", says]);
    }
}

#[test]
fn legal_oddities_are_accepted() {
    for (text, data) in [
        (r#"{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#, 4),
        (
            r#"{"dtype":"F32","shape":[18446744073709551615,18446744073709551615,0],"data_offsets":[0,0]}"#,
            0,
        ),
        (
            r#"{"x":{"y":[[1e400,null]]},"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#,
            1,
        ),
        (
            r#"{"\u0064type":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}"#,
            1,
        ),
    ] {
        // Unknown fields are skipped without converting them, so 1e400 is no trouble.
        let opened = entry(text, data);
        assert!(opened.is_ok(), "{text}: {opened:?}");
    }
    let nameless = open(file(
        r#"{"": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        1,
    ));
    assert!(nameless.unwrap().tensor("").is_some());
    assert!(
        open(file("\t\r\n {} \n\n", 0))
            .unwrap()
            .tensors()
            .is_empty()
    );
    assert!(
        open(file(r#"{"__metadata__": null}"#, 0))
            .unwrap()
            .metadata()
            .is_empty()
    );
}

#[test]
fn headers_that_are_no_object_of_tensors() {
    let bad = |header: &[u8], says: &str| {
        refused(open(file(header, 0)), ErrorKind::BadHeader, &[says]);
    };
    bad(b"", "ends in the middle");
    bad(b"   ", "ends in the middle");
    bad(b"null", "another shape");
    bad(b"7", "another shape");
    bad(b"\"text\"", "another shape");
    bad(b"{", "ends in the middle");
    bad(b"{}{}", "not valid JSON");
    bad(b"{}\0\0", "not valid JSON");
    bad(b"{\"a\"}", "not valid JSON");
    bad(b"{1: 2}", "not valid JSON");
    bad(b"\xef\xbb\xbf{}", "not valid JSON");
    bad(b"{\"\xc3\x28\": 1}", "UTF-8: invalid at byte 2 of 9");
    bad(b"{\"\\ud800\": 1}", "not valid JSON");
    bad("[".repeat(100_000).as_bytes(), "another shape");
    let deep = format!(r#"{{"a": {}"#, r#"{"x":"#.repeat(100_000));
    bad(deep.as_bytes(), "JSON");
    let deep = format!(
        r#"{{"a": {{"x": {}1{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    bad(deep.as_bytes(), "\"a\"");
}

#[test]
fn metadata_is_an_object_of_strings_and_each_key_occurs_once() {
    let bad = |metadata: &str, kind: ErrorKind, says: &str| {
        let header = format!(r#"{{"__metadata__": {metadata}}}"#);
        refused(open(file(header, 0)), kind, &["__metadata__", says]);
    };
    bad("[]", ErrorKind::BadHeader, "strings");
    bad("3", ErrorKind::BadHeader, "strings");
    bad(r#"{"epoch": 3}"#, ErrorKind::BadHeader, "\"epoch\"");
    bad(r#"{"a": {"b": "c"}}"#, ErrorKind::BadHeader, "\"a\"");
    bad(r#"{"a": null}"#, ErrorKind::BadHeader, "\"a\"");
    bad(r#"{"a": "1", "a": "1"}"#, ErrorKind::DuplicateName, "\"a\"");
    bad(
        r#"{}, "__metadata__": {}"#,
        ErrorKind::DuplicateName,
        "more than once",
    );
}

#[test]
fn ranges_must_cover_the_data_once() {
    let two = |first: &str, second: &str, data| {
        let tensor = |name: &str, entry: &str| format!(r#""{name}": {{"dtype":"U8",{entry}}}"#);
        open(file(
            format!("{{{},{}}}", tensor("a", first), tensor("b", second)),
            data,
        ))
    };
    let at = |begin: u64, end: u64| {
        format!(
            r#""shape":[{}],"data_offsets":[{begin},{end}]"#,
            end - begin
        )
    };
    assert!(two(&at(4, 8), &at(0, 4), 8).is_ok());
    assert!(two(&at(4, 4), &at(0, 4), 4).is_ok());
    assert!(two(&at(0, 0), &at(0, 4), 4).is_ok());
    let offsets = ErrorKind::BadOffsets;
    refused(
        two(&at(0, 4), &at(5, 8), 8),
        offsets,
        &["\"b\"", "hole of 1 bytes", "\"a\""],
    );
    refused(
        two(&at(0, 4), &at(3, 8), 8),
        offsets,
        &["\"b\"", "overlap", "\"a\" ends at 4"],
    );
    refused(two(&at(0, 4), &at(0, 4), 4), offsets, &["overlap"]);
    refused(two(&at(0, 8), &at(2, 2), 8), offsets, &["overlap"]);
    refused(two(&at(0, 4), &at(9, 9), 4), offsets, &["hole of 5 bytes"]);
    let huge = u64::MAX;
    refused(two(&at(0, 4), &at(huge - 1, huge), 8), offsets, &["hole"]);
    refused(
        two(&at(0, 4), &at(4, huge), 8),
        ErrorKind::Truncated,
        &["184467440737095517"],
    );
    let size = file("", 0).len() as u64;
    assert_eq!(size, 8);
    let short = two(&at(0, 4), &at(4, 8), 7).unwrap_err().to_string();
    assert!(short.contains("1 are missing"), "{short}");
    let long = two(&at(0, 4), &at(4, 8), 9).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::TrailingBytes);
    assert!(long.to_string().contains("longer"), "{long}");
}

#[test]
fn one_name_twice_is_refused_even_when_it_is_spelled_differently() {
    for second in ["w", "\\u0077"] {
        let header = format!(
            r#"{{"w": {{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},
                "{second}": {{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}}"#
        );
        refused(
            open(file(header, 2)),
            ErrorKind::DuplicateName,
            &["\"w\"", "duplicate"],
        );
    }
}

#[test]
fn strangers_are_recognised_whatever_their_first_bytes_mean_as_a_length() {
    let stranger = |bytes: &[u8], says: &str| {
        refused(open(bytes.to_vec()), ErrorKind::NotSafetensors, &[says]);
    };
    stranger(b"<!DOCTYPE html><html></html>", "HTML");
    stranger(b"GGUF\x03\0\0\0\0\0\0\0", "GGUF file (version 3)");
    stranger(b"{\"weight_map\": {}}", ".index.json");
    stranger(b"../../blobs/0123456789", "symbolic link");
    // Small enough to pass for a header length, in a file that is large enough to hold it.
    let mut zip = b"PK\x03\x04\0\0\0\0".to_vec();
    zip.resize(8 + 0x0403_4b50, 0);
    stranger(&zip, "zip archive");
    let mut pickle = b"\x80\x02\0\0\0\0\0\0}q\0".to_vec();
    pickle.resize(5000, 0xff);
    stranger(&pickle, "pickle");
    // A damaged header that is none of those keeps its own message.
    refused(
        open(vec![0xff; 64]),
        ErrorKind::HeaderTooLarge,
        &["18446744073709551615", "64"],
    );
}

#[cfg(unix)]
#[test]
fn a_header_of_exactly_the_limit_is_read_and_one_byte_more_is_not() {
    // A sparse file of the right size: nothing but holes, so the header is NUL bytes.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mem.safetensors");
    let attempt = |len: u64, size: u64| {
        std::fs::write(&path, len.to_le_bytes()).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        Checkpoint::open(&path)
    };
    let limit = 100_000_000;
    refused(
        attempt(limit, 8 + limit),
        ErrorKind::BadHeader,
        &["not valid JSON"],
    );
    refused(
        attempt(limit, 7 + limit),
        ErrorKind::Truncated,
        &["100000008", "100000007"],
    );
    refused(
        attempt(limit + 1, 16 + limit),
        ErrorKind::HeaderTooLarge,
        &["100000001"],
    );
}

#[cfg(unix)]
#[test]
fn a_tensor_that_is_larger_than_memory_is_refused_also_where_tensors_are_taken_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.safetensors");
    let len = 1_u64 << 42;
    let header = format!(
        r#"{{"small":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"w":{{"dtype":"U8","shape":[{len}],"data_offsets":[4,{}]}}}}"#,
        4 + len
    );
    std::fs::write(&path, file(header.clone(), 0)).unwrap();
    let whole = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    whole.set_len(8 + header.len() as u64 + 4 + len).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let loader = || checkpoint.loader().budget(1 << 20);
    let error = loader().stream().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(error.tensor_name(), Some("w"));
    let small = loader().select(tensora::Selection::names(["small"]));
    assert_eq!(small.stream().unwrap().count(), 1);
}

#[test]
fn files_without_an_index_must_not_share_names() {
    let source = |name: &str, tensor: &str| -> Arc<dyn Source> {
        let header = format!(
            r#"{{"__metadata__":{{"from":"{name}"}},"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
        );
        Arc::new(MemorySource::new(name, file(header, 1)))
    };
    let open = |sources| Checkpoint::from_sources(Layout::SafeTensors, sources, None);
    let both = open(vec![source("1.st", "a"), source("2.st", "b")]).unwrap();
    assert_eq!(both.position("b"), Some(1));
    assert_eq!(both.tensors()[1].extents[0].source, 1);
    assert_eq!(both.metadata()["from"], "1.st");
    let error = open(vec![source("1.st", "a"), source("2.st", "a")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DuplicateName);
    let text = error.to_string();
    assert!(text.contains("1.st") && text.contains("2.st"), "{text}");
    let error = Checkpoint::from_sources(Layout::ServerlessLlm, vec![], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
