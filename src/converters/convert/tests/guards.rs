//! What must not be lost, and what must not be waited for: files of others, the input, pipes.

use super::*;

fn forced() -> ConvertOptions {
    ConvertOptions {
        force: true,
        ..small()
    }
}

/// What `work` gives, which hangs when it opens a pipe.
#[cfg(unix)]
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    let limit = std::time::Duration::from_secs(60);
    receiver.recv_timeout(limit).expect("it hangs")
}

#[cfg(unix)]
fn make_pipe(at: &Path) {
    let made = std::process::Command::new("mkfifo").arg(at).status();
    assert!(made.unwrap().success());
}

#[cfg(feature = "digest")]
#[test]
fn another_checkpoint_beside_a_complete_output_is_named_and_goes_only_when_told() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let out = scratch.path().join("out");
    convert(&source, &out, &small()).unwrap();
    let wanted = files(&out);
    let single = scratch.path().join("single");
    let one = ConvertOptions {
        to: Some(Layout::SafeTensors),
        ..small()
    };
    convert(&source, &single, &one).unwrap();
    std::fs::copy(
        single.join("model.safetensors"),
        out.join("model.safetensors"),
    )
    .unwrap();
    let resume = ConvertOptions {
        resume: true,
        ..small()
    };
    let before = files(&out);
    let error = convert(&source, &out, &resume).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    assert_eq!(files(&out), before);
    let resume_forced = ConvertOptions {
        force: true,
        ..resume
    };
    let report = convert(&source, &out, &resume_forced).unwrap();
    assert_eq!(report.removed, [out.join("model.safetensors")]);
    assert_eq!(report.resumed_bytes, source.total_bytes());
    assert_eq!(files(&out), wanted);
    Checkpoint::open(&out).unwrap();
}

#[test]
fn an_input_that_is_written_to_meanwhile_is_named_and_gives_no_output() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("a");
    let source = sample(&path, &torch_dtypes());
    let shard = source.sources()[0].path().to_owned();
    let config = path.join("config.json");
    for (name, verify) in [(shard, false), (config, cfg!(feature = "digest"))] {
        let out = scratch.path().join("out");
        let options = ConvertOptions { verify, ..small() };
        let conversion = Conversion::plan(&source, &options).unwrap();
        let folder = conversion.claim(&out).unwrap();
        let edited = std::sync::Once::new();
        let edit = |_| {
            edited.call_once(|| {
                let modified = name.metadata().unwrap().modified().unwrap();
                let bytes = std::fs::read(&name).unwrap();
                let file = std::fs::File::options().write(true).open(&name).unwrap();
                // The same bytes are enough: nobody can tell that they were there all the while.
                crate::converters::write_all_at(&file, 0, &bytes).unwrap();
                file.set_modified(modified).unwrap();
            });
        };
        // Times on disk are no finer than the kernel's clock ticks.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let outcome = conversion.run(&folder, &edit);
        drop(folder);
        if cfg!(unix) {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
            assert_eq!(error.path(), Some(&*name));
            assert!(!out.exists());
        }
    }
}

#[cfg(unix)]
#[test]
fn links_through_the_output_folder_are_the_input() {
    use std::os::unix::fs::symlink;
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    sample(&at("a"), &[]);
    let names = files(&at("a")).into_keys();
    let shard = names
        .into_iter()
        .find(|name| name.ends_with(".safetensors"));
    let shard = shard.unwrap();
    for (round, name) in [&*shard, "model.safetensors.index.json", "config.json"]
        .into_iter()
        .enumerate()
    {
        let (input, out) = (at(&format!("in{round}")), at(&format!("out{round}")));
        std::fs::create_dir(&input).unwrap();
        std::fs::create_dir(&out).unwrap();
        for file in files(&at("a")).into_keys() {
            std::fs::copy(at("a").join(&file), input.join(file)).unwrap();
        }
        // The middle of the chain lies in the output folder.
        std::fs::rename(input.join(name), at(&format!("real{round}"))).unwrap();
        symlink(at(&format!("real{round}")), out.join("tensor.data_0")).unwrap();
        symlink(out.join("tensor.data_0"), input.join(name)).unwrap();
        let source = Checkpoint::open(&input).unwrap();
        let before = files(&out);
        let error = convert(&source, &out, &forced()).unwrap_err();
        assert!(error.to_string().contains("read from"), "{error}");
        assert_eq!(files(&out), before);
    }
    // The index of partitions and the file of metadata, too.
    let partitions = at("partitions");
    convert(&Checkpoint::open(at("a")).unwrap(), &partitions, &small()).unwrap();
    for name in ["tensor_index.json", METADATA_FILE] {
        let out = at(&format!("out-{name}"));
        std::fs::create_dir(&out).unwrap();
        std::fs::rename(partitions.join(name), out.join(name)).unwrap();
        symlink(out.join(name), partitions.join(name)).unwrap();
        let source = Checkpoint::open(&partitions).unwrap();
        let error = convert(&source, &out, &forced()).unwrap_err();
        assert!(error.to_string().contains("read from"), "{error}");
        assert!(out.join(name).is_file());
        std::fs::remove_file(partitions.join(name)).unwrap();
        std::fs::rename(out.join(name), partitions.join(name)).unwrap();
    }
    // What should say what the metadata are, and leads nowhere.
    std::fs::remove_file(partitions.join(METADATA_FILE)).unwrap();
    symlink("nowhere", partitions.join(METADATA_FILE)).unwrap();
    let source = Checkpoint::open(&partitions).unwrap();
    let error = convert(&source, at("never"), &small()).unwrap_err();
    assert_eq!(error.path(), Some(&*partitions.join(METADATA_FILE)));
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn hidden_files_of_others_are_neither_remains_nor_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let out = scratch.path().join("out");
    let mine = [
        ".film.mkv.part",
        ".tensor.data_007.part",
        ".x.tmp-4194305-4",
    ];
    std::fs::create_dir(&out).unwrap();
    for name in mine {
        std::fs::write(out.join(name), b"mine").unwrap();
    }
    convert(&source, &out, &small()).unwrap();
    std::fs::write(out.join("tensor.data_007"), b"mine").unwrap();
    std::fs::write(out.join(".tensor.data_9.part"), b"ours").unwrap();
    let resume_forced = ConvertOptions {
        resume: true,
        ..forced()
    };
    for options in [forced(), resume_forced] {
        convert(&source, &out, &options).unwrap();
        for name in mine.into_iter().chain(["tensor.data_007"]) {
            assert_eq!(std::fs::read(out.join(name)).unwrap(), b"mine");
        }
        assert!(!out.join(".tensor.data_9.part").exists());
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_folders_in_the_way_are_named_and_nobody_waits_for_them() {
    use std::os::unix::fs::symlink;
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let source = sample(&at("a"), &[]);
    convert(&source, at("out"), &small()).unwrap();
    let before = files(&at("out"));
    make_pipe(&at("pipe"));
    let names = [
        "config.json",
        "tensor_index.json",
        "tensor.data_0",
        "model.safetensors",
        "model.safetensors.index.json",
        ".tensor.data_0.part",
        INCOMPLETE_FILE,
        JOURNAL_FILE,
    ];
    let make = |kind: &str, to: &Path| match kind {
        "pipe" => make_pipe(to),
        "folder" => std::fs::create_dir(to).unwrap(),
        "link to a pipe" => symlink("../pipe", to).unwrap(),
        _ => symlink("../a", to).unwrap(),
    };
    for name in names {
        for kind in ["pipe", "link to a pipe", "folder", "link to a folder"] {
            let path = at("out").join(name);
            let held = std::fs::rename(&path, at("held")).is_ok();
            make(kind, &path);
            for (resume, force) in [(false, true), (true, false), (true, true)] {
                let options = ConvertOptions {
                    resume,
                    force,
                    ..small()
                };
                let (source, out) = (source.clone(), at("out"));
                let error = in_time(move || convert(&source, &out, &options).unwrap_err());
                assert_eq!(error.path(), Some(&*path), "{name}, {kind}: {error}");
            }
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_dir(&path);
            if held {
                std::fs::rename(at("held"), &path).unwrap();
            }
            assert_eq!(files(&at("out")), before, "{name}, {kind}");
        }
    }
    // In the input they are refused or left out, and nobody waits either.
    make_pipe(&at("a").join("tokenizer.json"));
    let (source, out) = (source.clone(), at("b"));
    let report = in_time(move || convert(&source, &out, &small()).unwrap());
    assert_eq!(report.skipped, [at("a").join("tokenizer.json")]);
    let partitions = at("out");
    std::fs::remove_file(partitions.join("tensor_index.json")).unwrap();
    make_pipe(&partitions.join("tensor_index.json"));
    in_time(move || Checkpoint::open(partitions).map(drop).unwrap_err());
}

#[test]
fn a_key_of_the_users_that_looks_like_ours_goes_there_and_back() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let tensors = vec![OutputTensor::new("x", Dtype::U8, [4])];
    let metadata = BTreeMap::from([("tensora.index_metadata".to_owned(), "mine [".to_owned())]);
    let options = SafetensorsOptions {
        metadata: metadata.clone(),
        ..Default::default()
    };
    let plan = plan_safetensors(tensors, &options).unwrap();
    let writer = CheckpointWriter::create(at("a"), plan, WriteOptions::default()).unwrap();
    writer.write_all(|_, sink| sink.write(b"1234")).unwrap();
    writer.finish().unwrap();
    convert(&Checkpoint::open(at("a")).unwrap(), at("b"), &small()).unwrap();
    convert(&Checkpoint::open(at("b")).unwrap(), at("c"), &small()).unwrap();
    assert_eq!(*Checkpoint::open(at("c")).unwrap().metadata(), metadata);
}
