//! `inspect`: what a checkpoint holds, out of its headers.

mod tree;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::text;
use tensora::{Checkpoint, Dtype, Layout, TensorMeta};

use crate::model::{self, Named};
use crate::output;
use crate::size;
use tree::Tree;

/// Show what a checkpoint holds: tensors, types, files, layers. Reads no data.
#[derive(Debug, Args)]
pub struct Inspect {
    #[command(flatten)]
    named: Named,
    /// Show every layer, and not equal ones together
    #[arg(long)]
    all: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    path: PathBuf,
    layout: Layout,
    total_tensors: u64,
    total_bytes: u64,
    total_parameters: u64,
    dtypes: BTreeMap<&'static str, Share>,
    files: Vec<FileShare>,
    layers: BTreeMap<String, Share>,
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<TensorLine<'a>>,
}

/// A part of the tensors.
#[derive(Clone, Copy, Default, Serialize)]
struct Share {
    tensors: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct FileShare {
    path: String,
    file_bytes: u64,
    #[serde(flatten)]
    share: Share,
}

#[derive(Serialize)]
struct TensorLine<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: &'a [u64],
    nbytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    strides: Option<&'a [u64]>,
    /// Where the bytes lie: index into the files, offset in the file, length.
    extents: &'a [tensora::Extent],
}

pub fn run(args: &Inspect, out: &mut dyn Write) -> Result<()> {
    let (path, checkpoint) = args.named.open()?;
    let report = report(&checkpoint, path);
    if args.json {
        return output::json_line(out, &report);
    }
    writeln!(out, "{}", text::path(&report.path))?;
    writeln!(out, "{}", model::summary(&checkpoint))?;
    let parameters = match report.total_parameters {
        1 => "parameter",
        _ => "parameters",
    };
    writeln!(out, "{} {parameters}", grouped(report.total_parameters))?;
    for (key, value) in report.metadata {
        writeln!(out, "{}: {}", text::name(key), text::name(value))?;
    }
    writeln!(out)?;
    let mut types = output::table(&["type", "tensors", "size"], &[1, 2]);
    for (dtype, share) in &report.dtypes {
        types.add_row([
            (*dtype).to_owned(),
            share.tensors.to_string(),
            size::bytes(share.bytes),
        ]);
    }
    output::print_table(out, &types)?;
    writeln!(out)?;
    let mut files = output::table(&["file", "tensors", "size", "file size"], &[1, 2, 3]);
    for file in &report.files {
        let FileShare {
            path,
            file_bytes,
            share,
        } = file;
        let (tensors, bytes) = (share.tensors.to_string(), size::bytes(share.bytes));
        files.add_row([
            text::name(path).into_owned(),
            tensors,
            bytes,
            size::bytes(*file_bytes),
        ]);
    }
    output::print_table(out, &files)?;
    writeln!(out)?;
    Tree::new(checkpoint.tensors()).print(out, !args.all)?;
    Ok(())
}

fn report(checkpoint: &Checkpoint, path: PathBuf) -> Report<'_> {
    let mut dtypes: BTreeMap<&'static str, Share> = BTreeMap::new();
    let mut layers: BTreeMap<String, Share> = BTreeMap::new();
    let mut shares = vec![Share::default(); checkpoint.sources().len()];
    for tensor in checkpoint.tensors() {
        let bytes = tensor.nbytes();
        let mut to = vec![dtypes.entry(tensor.dtype.name()).or_default()];
        to.extend(layer(&tensor.name).map(|layer| layers.entry(layer.to_owned()).or_default()));
        to.extend(home(tensor).map(|source| &mut shares[source]));
        for share in to {
            share.tensors += 1;
            share.bytes += bytes;
        }
    }
    let files = checkpoint
        .sources()
        .iter()
        .zip(shares)
        .map(|(source, share)| FileShare {
            path: relative(source.path(), checkpoint),
            file_bytes: source.len(),
            share,
        });
    let lines = checkpoint.tensors().iter().map(|tensor| TensorLine {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        nbytes: tensor.nbytes(),
        strides: tensor.strides.as_deref(),
        extents: &tensor.extents,
    });
    let parameters = |tensor: &TensorMeta| {
        let dims = tensor.shape.iter();
        dims.fold(1_u64, |product, &dim| product.saturating_mul(dim))
    };
    Report {
        path,
        layout: checkpoint.layout(),
        total_tensors: checkpoint.tensors().len() as u64,
        total_bytes: checkpoint.total_bytes(),
        total_parameters: checkpoint
            .tensors()
            .iter()
            .map(parameters)
            .fold(0, u64::saturating_add),
        dtypes,
        files: files.collect(),
        layers,
        metadata: checkpoint.metadata(),
        tensors: lines.collect(),
    }
}

/// The file in which a tensor begins.
fn home(tensor: &TensorMeta) -> Option<usize> {
    tensor.extents.first().map(|extent| extent.source as usize)
}

/// `model.layers.17` of `model.layers.17.mlp.up_proj.weight`: up to the first number.
fn layer(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

fn relative(path: &std::path::Path, checkpoint: &Checkpoint) -> String {
    let path = path.strip_prefix(checkpoint.root()).unwrap_or(path);
    path.to_string_lossy().into_owned()
}

/// A number with a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_end_with_the_first_number() {
        assert_eq!(
            layer("model.layers.17.mlp.0.weight"),
            Some("model.layers.17")
        );
        assert_eq!(layer("h.0"), Some("h.0"));
        assert_eq!(layer("lm_head.weight"), None);
        assert_eq!(layer(""), None);
        assert_eq!(layer("a..7x.b"), None);
    }

    #[test]
    fn numbers_are_grouped_from_the_right() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
