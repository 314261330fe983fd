//! Folders that hold something before.

use super::*;

#[test]
fn an_earlier_checkpoint_is_whole_until_it_is_replaced_and_then_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let out = scratch.path().join("out");
    convert(
        &source,
        &out,
        &ConvertOptions {
            partitions: Some(9),
            ..small()
        },
    )
    .unwrap();
    std::fs::write(out.join("notes.txt"), b"mine").unwrap();
    let three = ConvertOptions {
        partitions: Some(3),
        ..small()
    };
    let error = convert(&source, &out, &three).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    let forced = ConvertOptions {
        force: true,
        ..three
    };
    let conversion = Conversion::plan(&source, &forced).unwrap();
    conversion.writes_left.store(3, Ordering::Relaxed);
    let folder = conversion.claim(&out).unwrap();
    conversion.run(&folder, &|_| {}).unwrap_err();
    drop(folder);
    assert_eq!(Checkpoint::open(&out).unwrap().sources().len(), 9);
    convert(&source, &out, &forced).unwrap();
    let names: Vec<_> = files(&out).into_keys().collect();
    let expected = [
        "config.json",
        "notes.txt",
        "safetensors_metadata.json",
        "tensor.data_0",
        "tensor.data_1",
        "tensor.data_2",
        "tensor_index.json",
    ];
    assert_eq!(names, expected);
    // The other layout in the same folder takes the place of this one.
    let copy = ConvertOptions {
        to: Some(Layout::SafeTensors),
        force: true,
        ..small()
    };
    convert(&source, &out, &copy).unwrap();
    let names: Vec<_> = files(&out).into_keys().collect();
    assert_eq!(names, ["config.json", "model.safetensors", "notes.txt"]);
}

fn to_safetensors() -> ConvertOptions {
    ConvertOptions {
        to: Some(Layout::SafeTensors),
        force: true,
        ..small()
    }
}

#[test]
fn a_checkpoint_of_any_name_is_replaced_and_files_of_others_stay() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let one = scratch.path().join("one");
    convert(&source, &one, &to_safetensors()).unwrap();
    let index = br#"{"weight_map": {"scalar": "x-a.safetensors", "none": "x-b.safetensors"}}"#;
    let out = scratch.path().join("out");
    for (name, shards) in [
        ("diffusion_pytorch_model.safetensors", &[][..]),
        ("something.safetensors", &[]),
        (
            "pytorch.safetensors.index.json",
            &["x-a.safetensors", "x-b.safetensors"],
        ),
        (
            "model.safetensors.index.json",
            &["x-a.safetensors", "x-b.safetensors"],
        ),
    ] {
        for to in Layout::ALL {
            std::fs::create_dir(&out).unwrap();
            std::fs::write(out.join("notes.txt"), b"mine").unwrap();
            let is_index = name.ends_with(".json");
            match is_index {
                true => std::fs::write(out.join(name), index).map(|()| 0),
                false => std::fs::copy(one.join("model.safetensors"), out.join(name)),
            }
            .unwrap();
            for shard in shards {
                std::fs::copy(one.join("model.safetensors"), out.join(shard)).unwrap();
            }
            let options = ConvertOptions {
                to: Some(to),
                ..to_safetensors()
            };
            let report = convert(&source, &out, &options).unwrap();
            assert_eq!(report.kept, [out.join("notes.txt")]);
            assert_eq!(report.removed.len(), 1 + shards.len(), "{name} {to}");
            let found = Checkpoint::open(&out).unwrap();
            assert_eq!(everything(&found), everything(&source), "{name} {to}");
            assert!(!out.join(name).exists() && out.join("notes.txt").exists());
            std::fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn a_folder_in_which_it_is_not_clear_what_to_replace_is_refused_untouched() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let out = scratch.path().join("out");
    for there in [
        &["a.safetensors", "b.safetensors"][..],
        &["adapter_model.safetensors", "model.safetensors"],
        &["tensor_index.json", "lora.safetensors"],
    ] {
        std::fs::create_dir(&out).unwrap();
        for name in there {
            std::fs::write(out.join(name), b"mine").unwrap();
        }
        let options = ConvertOptions {
            to: Some(Layout::ServerlessLlm),
            ..to_safetensors()
        };
        let error = convert(&source, &out, &options).unwrap_err();
        let named = there.iter().any(|name| error.to_string().contains(name));
        assert!(named, "{error}");
        let names: Vec<String> = files(&out).into_keys().collect();
        assert_eq!(names.len(), there.len(), "{names:?}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn obstacles_are_found_before_anything_is_touched() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let out = scratch.path().join("out");
    let forced = ConvertOptions {
        to: Some(Layout::ServerlessLlm),
        ..to_safetensors()
    };
    convert(&source, &out, &forced).unwrap();
    let before = files(&out);
    for name in [
        "model.safetensors",
        "tensor.data_7",
        "model.safetensors.index.json",
        ".tensor.data_0.part",
    ] {
        std::fs::create_dir(out.join(name)).unwrap();
        let error = convert(&source, &out, &forced).unwrap_err();
        assert_eq!(error.path(), Some(&*out.join(name)), "{error}");
        std::fs::remove_dir(out.join(name)).unwrap();
        assert_eq!(files(&out), before);
    }
}

#[test]
fn other_files_that_are_replaced_are_told() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let out = scratch.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("config.json"), b"another").unwrap();
    std::fs::write(out.join("tokenizer.json"), b"of the earlier one").unwrap();
    let report = convert(&source, &out, &to_safetensors()).unwrap();
    assert_eq!(report.replaced, [out.join("config.json")]);
    assert_eq!(report.kept, [out.join("tokenizer.json")]);
    let report = convert(&source, &out, &to_safetensors()).unwrap();
    assert!(report.replaced.is_empty());
}

#[cfg(unix)]
#[test]
fn the_input_is_known_by_any_path() {
    let scratch = tempfile::tempdir().unwrap();
    let model = scratch.path().join("model");
    sample(&model, &[]);
    // The index above its shards.
    let names: Vec<String> = files(&model).into_keys().collect();
    std::fs::create_dir(model.join("sub")).unwrap();
    let index = model.join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, text.replace("\"model-", "\"sub/model-")).unwrap();
    for name in names {
        if name.ends_with(".safetensors") {
            std::fs::rename(model.join(&name), model.join("sub").join(&name)).unwrap();
        }
    }
    let source = Checkpoint::open(&model).unwrap();
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(&model, &link).unwrap();
    for out in [model.clone(), model.join("sub"), link, model.join("sub/..")] {
        let error = convert(&source, &out, &to_safetensors()).unwrap_err();
        assert!(error.to_string().contains("read from"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn companions_that_cannot_be_copied_are_told() {
    use std::os::unix::ffi::OsStrExt as _;
    let scratch = tempfile::tempdir().unwrap();
    let model = scratch.path().join("model");
    let source = sample(&model, &[]);
    std::fs::create_dir(model.join("folder.json")).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"\xff.json");
    std::fs::write(model.join(name), b"{}").unwrap();
    let out = scratch.path().join("out");
    let report = convert(&source, &out, &small()).unwrap();
    assert_eq!(
        report.skipped,
        [model.join("folder.json"), model.join(name)]
    );
    std::os::unix::fs::symlink("../gone", model.join("tokenizer.json")).unwrap();
    let error = convert(&source, scratch.path().join("b"), &small()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("tokenizer.json") && text.contains("../gone"),
        "{text}"
    );
}

#[test]
fn messages_say_what_is_in_the_way() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[Dtype::F4]);
    let error = convert(&source, scratch.path().join("b"), &small()).unwrap_err();
    assert!(error.path().is_some_and(|path| path.is_file()), "{error}");
    let file = scratch.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = convert(&source, &file, &to_safetensors()).unwrap_err();
    assert!(error.to_string().contains("this is a file"), "{error}");
    #[cfg(unix)]
    {
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let error = convert(&source, &link, &to_safetensors()).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
    let source = sample(&scratch.path().join("c"), &[]);
    let partitions = scratch.path().join("d");
    convert(&source, &partitions, &small()).unwrap();
    std::fs::remove_file(partitions.join(METADATA_FILE)).unwrap();
    std::fs::create_dir(partitions.join(METADATA_FILE)).unwrap();
    let source = Checkpoint::open(&partitions).unwrap();
    let error = convert(&source, scratch.path().join("e"), &small()).unwrap_err();
    assert!(error.to_string().contains("this is a folder"), "{error}");
}
