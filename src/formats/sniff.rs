//! Recognising what was put in the place of weights.
//!
//! Looked at only after a SafeTensors header made no sense, so that no legal file is refused for
//! the way it begins.

use crate::error::{Error, ErrorKind};

/// The error for a file of `len` bytes that begins with `start`, if that is something we know.
pub(crate) fn sniff(start: &[u8], len: u64) -> Option<Error> {
    let (message, remedy) = recognise(start, len)?;
    Some(Error::new(ErrorKind::NotSafetensors, message).help(remedy))
}

fn recognise(start: &[u8], len: u64) -> Option<(String, &'static str)> {
    let text = start.trim_ascii_start();
    let has = |magic: &[u8]| start.starts_with(magic);
    let found = if text.starts_with(b"version https://git-lfs") {
        (
            lfs_pointer(text, len),
            "fetch the weights with `git lfs pull`, or download the file itself",
        )
    } else if starts_with_ignoring_case(text, &[b"<!doctype html", b"<html", b"<head"]) {
        (
            format!("this is an HTML page of {len} bytes, not weights"),
            "the download was answered with a web page (a login or an error); fetch the file again",
        )
    } else if text.starts_with(b"<?xml") {
        (
            format!("this is an XML document of {len} bytes, not weights"),
            "the download was probably answered with an error message; fetch the file again",
        )
    } else if has(b"PK\x03\x04") || has(b"PK\x05\x06") {
        (
            format!("this is a zip archive of {len} bytes, as torch.save writes it"),
            "convert the .bin or .pt file to SafeTensors first",
        )
    } else if matches!(start, [0x80, 2..=5, ..]) {
        (
            format!(
                "this is a Python pickle of {len} bytes (protocol {})",
                start[1]
            ),
            "convert the .bin or .pt file to SafeTensors first; pickles can run code and are never read",
        )
    } else if has(b"GGUF") {
        let version = match start.get(4..8) {
            Some(&[a, b, c, d]) => format!(" (version {})", u32::from_le_bytes([a, b, c, d])),
            _ => String::new(),
        };
        (
            format!("this is a GGUF file{version} of {len} bytes"),
            "use the SafeTensors files of the same model",
        )
    } else if has(&[0x1f, 0x8b]) {
        (
            format!("this is gzip-compressed data of {len} bytes"),
            "decompress it first",
        )
    } else if has(&[0x28, 0xb5, 0x2f, 0xfd]) {
        (
            format!("this is zstd-compressed data of {len} bytes"),
            "decompress it first",
        )
    } else if has(b"\x89HDF\r\n\x1a\n") {
        (
            format!("this is an HDF5 file of {len} bytes"),
            "use the SafeTensors files of the same model",
        )
    } else if has(b"\x93NUMPY") {
        (
            format!("this is a NumPy array file of {len} bytes"),
            "save the array as SafeTensors first",
        )
    } else if start.get(257..262) == Some(b"ustar") {
        (
            format!("this is a tar archive of {len} bytes"),
            "unpack it first",
        )
    } else if let Some(target) = flattened_link(start, len) {
        (
            format!(
                "this is the text {} of {len} bytes, what is left of a symbolic link",
                crate::text::quoted(target)
            ),
            "copy the folder again with links kept (cp -a) or followed (cp -L)",
        )
    } else if looks_like_json(text) {
        (
            format!("this is JSON text of {len} bytes without the 8-byte header length before it"),
            "if it is the index of a sharded checkpoint, its name must end in .index.json",
        )
    } else {
        return None;
    };
    Some(found)
}

fn lfs_pointer(text: &[u8], len: u64) -> String {
    let size = text
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"size "))
        .and_then(|digits| std::str::from_utf8(digits.trim_ascii()).ok())
        .and_then(|digits| digits.parse::<u64>().ok());
    match size {
        Some(size) => {
            format!("this is a git-lfs pointer of {len} bytes, standing for a file of {size} bytes")
        }
        None => format!("this is a git-lfs pointer of {len} bytes, not the weights themselves"),
    }
}

/// Archives and checkouts without symbolic links leave the target as the content, and the Hub
/// cache is made of links.
fn flattened_link(start: &[u8], len: u64) -> Option<&str> {
    let whole = len == start.len() as u64;
    let target = std::str::from_utf8(start).ok()?.trim_end();
    let is_path = target.starts_with("../") && !target.contains(char::is_control);
    (whole && is_path).then_some(target)
}

fn starts_with_ignoring_case(text: &[u8], starts: &[&[u8]]) -> bool {
    starts.iter().any(|start| {
        text.get(..start.len())
            .is_some_and(|head| head.eq_ignore_ascii_case(start))
    })
}

/// An opening bracket and what may follow it, all in printable characters.
fn looks_like_json(text: &[u8]) -> bool {
    let Some((b'{' | b'[', rest)) = text.split_first() else {
        return false;
    };
    let head = &rest[..rest.len().min(64)];
    matches!(
        rest.trim_ascii_start().first(),
        Some(b'"' | b'{' | b'[' | b'}' | b']' | b'0'..=b'9')
    ) && !head
        .iter()
        .any(|&byte| byte < b' ' && !byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stranger_gets_its_own_message_with_numbers() {
        let mut tar = vec![b'a'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let cases: &[(&[u8], &str)] = &[
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98765\n",
                "git-lfs pointer of 4242 bytes, standing for a file of 98765 bytes",
            ),
            (b"version https://git-lfs.github.com/", "git-lfs pointer"),
            (b"\n<!DOCTYPE HTML><p>", "HTML page"),
            (b"<HTML lang=en>", "HTML page"),
            (b"<?xml version=\"1.0\"?><Error>", "XML document"),
            (b"PK\x03\x04rest", "zip archive"),
            (b"\x80\x02}q\x00", "pickle of 4242 bytes (protocol 2)"),
            (b"GGUF\x03\0\0\0", "GGUF file (version 3)"),
            (b"GGUF", "GGUF file of"),
            (&[0x1f, 0x8b, 8], "gzip"),
            (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
            (b"\x93NUMPY\x01", "NumPy"),
            (&tar, "tar archive"),
            (b" {\n \"weight_map\": {", "JSON text"),
            (b"[1, 2]", "JSON text"),
        ];
        for (start, expected) in cases {
            let error = sniff(start, 4242).unwrap_or_else(|| panic!("{expected} not recognised"));
            assert_eq!(error.kind(), ErrorKind::NotSafetensors);
            let text = error.to_string();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("4242"), "{text}");
        }
        let link = sniff(b"../../blobs/0123abcd", 20).unwrap().to_string();
        assert!(link.contains("symbolic link"), "{link}");
        assert!(sniff(b"../../blobs/0123abcd", 99).is_none());
        assert!(sniff(b"", 0).is_none());
        assert!(sniff(b"\x10\0\0\0\0\0\0\0{}", 18).is_none());
        // A length whose lowest byte is an opening bracket is not JSON text.
        assert!(sniff(b"{\0\0\0\0\0\0\0{\"a\"", 200).is_none());
    }
}
