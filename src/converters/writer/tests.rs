//! Checkpoints that are written whole, in any order, over others, and not to the end.

use super::*;
use crate::converters::{
    OutputTensor, SafetensorsOptions, ServerlessLlmOptions, Sharding, plan_safetensors,
    plan_serverlessllm,
};
use crate::dtype::Dtype;

fn tensors() -> Vec<OutputTensor> {
    let mut tensors: Vec<_> = (0..40)
        .map(|i| OutputTensor::new(format!("w{i}"), Dtype::U8, [1 + i * 37 % 300]))
        .collect();
    tensors.push(OutputTensor::new("empty", Dtype::F32, [0, 3]));
    tensors.push(OutputTensor::new("wide", Dtype::F64, [3, 5]));
    tensors
}

fn bytes_of(index: usize, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i as usize * 7 + index * 31) as u8)
        .collect()
}

fn shards(count: u32) -> OutputPlan {
    let options = SafetensorsOptions {
        sharding: Sharding::Count(count),
        ..Default::default()
    };
    plan_safetensors(tensors(), &options).unwrap()
}

fn partitions(count: u32) -> OutputPlan {
    let options = ServerlessLlmOptions {
        partitions: Some(count),
        ..ServerlessLlmOptions::default()
    };
    plan_serverlessllm(tensors(), &options).unwrap()
}

/// Every file of a folder by name.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn write(folder: &Path, plan: OutputPlan, options: WriteOptions) -> Result<WriteReport> {
    let writer = CheckpointWriter::create(folder, plan, options)?;
    writer.write_all(|index, sink| {
        for chunk in bytes_of(index, sink.remaining()).chunks(13) {
            sink.write(chunk)?;
        }
        Ok(())
    })?;
    writer.finish()
}

#[test]
fn the_files_are_what_the_plan_says_in_either_layout() {
    for plan in [shards(1), shards(20), partitions(3)] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("new/model");
        let report = write(&folder, plan.clone(), WriteOptions::default()).unwrap();
        assert_eq!(report.tensor_bytes, plan.tensor_bytes());
        let files = contents(&folder);
        assert_eq!(files.len(), report.files.len());
        let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(report.file_bytes, total as u64);
        for (index, place) in plan.placements.iter().enumerate() {
            let output = &plan.files[place.file as usize];
            let bytes = std::fs::read(folder.join(&output.name)).unwrap();
            assert_eq!(bytes.len() as u64, output.len);
            let range = place.offset as usize..(place.offset + place.len) as usize;
            assert_eq!(bytes[range], bytes_of(index, place.len));
            assert!(bytes.starts_with(&output.head));
        }
        if let Some(index) = plan.index {
            assert_eq!(
                std::fs::read(folder.join(&index.name)).unwrap(),
                index.bytes
            );
            assert!(report.files.last().unwrap().ends_with(&index.name));
        }
    }
}

#[test]
fn any_order_and_any_number_of_threads_give_the_same_bytes() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(one.path(), shards(30), WriteOptions::default()).unwrap();
    let writer =
        CheckpointWriter::create(other.path(), shards(30), WriteOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let writer = &writer;
            scope.spawn(move || {
                for index in (0..writer.plan().tensors.len()).rev() {
                    if index % 4 == part {
                        let mut sink = writer.tensor(index).unwrap();
                        let bytes = bytes_of(index, sink.remaining());
                        sink.write(&bytes).unwrap();
                        sink.finish().unwrap();
                    }
                }
            });
        }
    });
    writer.finish().unwrap();
    assert_eq!(contents(one.path()), contents(other.path()));
}

#[test]
fn too_many_or_too_few_bytes_are_refused_and_nothing_is_left() {
    for produced in [0, 3, 5] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("model");
        let tensors = vec![OutputTensor::new("four", Dtype::U8, [4])];
        let plan = plan_safetensors(tensors, &SafetensorsOptions::default()).unwrap();
        let writer = CheckpointWriter::create(&folder, plan, WriteOptions::default()).unwrap();
        let error = writer
            .write_all(|_, sink| sink.write(&vec![1; produced]))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.tensor_name(), Some("four"));
        let text = error.to_string();
        assert!(text.contains(&format!("{produced} bytes")) && text.contains("4 bytes"));
        assert_eq!(
            writer.tensor(0).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            writer.finish().unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert!(!folder.exists());
    }
}

#[test]
fn the_error_of_a_producer_comes_through_and_the_old_checkpoint_stays() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path(), shards(3), WriteOptions::default()).unwrap();
    let before = contents(scratch.path());
    let overwrite = WriteOptions { overwrite: true };
    let writer = CheckpointWriter::create(scratch.path(), shards(3), overwrite).unwrap();
    let error = writer
        .write_all(|index, sink| match index {
            20 => Err(Error::new(ErrorKind::Cancelled, "stop")),
            _ => sink.write(&vec![0; sink.remaining() as usize]),
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    drop(writer);
    assert_eq!(contents(scratch.path()), before);
}

#[test]
fn existing_files_are_replaced_only_when_that_is_allowed() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path(), shards(3), WriteOptions::default()).unwrap();
    // A single file beside the index of the shards would be a checkpoint with two meanings.
    for plan in [shards(3), shards(1)] {
        let error = write(scratch.path(), plan, WriteOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("index.json"), "{error}");
    }
    let overwrite = WriteOptions { overwrite: true };
    write(scratch.path(), shards(3), overwrite).unwrap();
    write(scratch.path(), shards(1), overwrite).unwrap();
    let index = scratch.path().join("model.safetensors.index.json");
    assert!(!index.exists() && scratch.path().join("model.safetensors").exists());
}

#[cfg(unix)]
#[test]
fn a_checkpoint_that_does_not_fit_is_refused_before_it_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    let tensors = vec![OutputTensor::new("huge", Dtype::U8, [1 << 60])];
    let plan = plan_safetensors(tensors, &SafetensorsOptions::default()).unwrap();
    let folder = scratch.path().join("model");
    let error = CheckpointWriter::create(&folder, plan, WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("free"), "{error}");
    assert!(!folder.exists());
}
