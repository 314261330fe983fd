//! Runs that were interrupted, and what is believed of what they left.

use super::*;

#[test]
fn writes_that_fail_leave_nothing_and_under_resume_a_part_that_is_refused_and_continued() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let out = scratch.path().join("out");
    let options = ConvertOptions {
        partitions: Some(5),
        ..small()
    };
    let resume = ConvertOptions {
        resume: true,
        ..options.clone()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &options).unwrap();
    for writes in 0..Conversion::plan(&source, &options).unwrap().pieces.len() as i64 {
        for options in [&options, &resume] {
            let conversion = Conversion::plan(&source, options).unwrap();
            conversion.writes_left.store(writes, Ordering::Relaxed);
            let folder = conversion.claim(&out).unwrap();
            let error = conversion.run(&folder, &|_| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.path().unwrap().starts_with(&out), "{error}");
            drop(folder);
            if options.resume {
                let error = Checkpoint::open(&out).unwrap_err();
                assert!(error.to_string().contains("option resume"), "{error}");
            } else {
                assert!(!out.exists());
            }
        }
        let report = convert(&source, &out, &resume).unwrap();
        // Without digests nothing that was found can be believed.
        if cfg!(feature = "digest") && writes > 4 {
            assert!(report.resumed_bytes > 0);
        }
        assert_eq!(files(&out), files(&wanted));
        // And once more: there is nothing to do.
        if cfg!(feature = "digest") && writes == 0 {
            let report = convert(&source, &out, &resume).unwrap();
            assert_eq!(report.resumed_bytes, source.total_bytes());
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_crash_after_each_step_of_the_commit_is_refused_by_name_and_continued() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let options = ConvertOptions {
        partitions: Some(3),
        ..small()
    };
    let resume = ConvertOptions {
        resume: true,
        ..options.clone()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &options).unwrap();
    let print = Conversion::plan(&source, &resume).unwrap().fingerprint;
    let names: Vec<String> = files(&wanted).into_keys().collect();
    // Files go to their places one after the other; the mark is there all the while.
    for placed in 0..=names.len() {
        let out = scratch.path().join(format!("out{placed}"));
        std::fs::create_dir(&out).unwrap();
        let mark = out.join(INCOMPLETE_FILE);
        let mut file = std::fs::File::create(&mark).unwrap();
        journal::begin(&mut file, &mark, print).unwrap();
        for (at, name) in names.iter().enumerate() {
            let to = if at < placed {
                out.join(name)
            } else {
                parts::part_path(&out, name)
            };
            std::fs::copy(wanted.join(name), to).unwrap();
        }
        for path in [out.clone(), out.join("tensor_index.json")] {
            let error = Checkpoint::open(path).unwrap_err();
            assert!(error.to_string().contains("interrupted"), "{error}");
        }
        let error = convert(&source, &out, &options).unwrap_err();
        assert!(error.to_string().contains("option resume"), "{error}");
        convert(&source, &out, &resume).unwrap();
        assert_eq!(files(&out), files(&wanted));
    }
}

#[test]
fn a_commit_that_lost_a_file_or_is_older_than_a_journal_begins_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let resume = ConvertOptions {
        partitions: Some(3),
        resume: true,
        ..small()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &resume).unwrap();
    let print = Conversion::plan(&source, &resume).unwrap().fingerprint;
    for lost in ["tensor.data_1", "tensor_index.json", "config.json", ""] {
        let out = scratch.path().join(format!("without{lost}"));
        std::fs::create_dir(&out).unwrap();
        let mark = out.join(INCOMPLETE_FILE);
        let mut file = std::fs::File::create(&mark).unwrap();
        journal::begin(&mut file, &mark, print).unwrap();
        for name in files(&wanted).into_keys().filter(|name| name != lost) {
            std::fs::copy(wanted.join(&name), parts::part_path(&out, &name)).unwrap();
        }
        let mut resume = resume.clone();
        if lost.is_empty() {
            // A run with other options came as far as to write other bytes.
            let journal = out.join(JOURNAL_FILE);
            let mut file = std::fs::File::create(&journal).unwrap();
            journal::begin(&mut file, &journal, Fingerprint::new()).unwrap();
            let part = parts::part_path(&out, "tensor.data_0");
            let len = part.metadata().unwrap().len();
            std::fs::write(part, vec![1; len as usize]).unwrap();
            let error = convert(&source, &out, &resume).unwrap_err();
            assert!(error.to_string().contains("another conversion"), "{error}");
            resume.force = true;
        }
        convert(&source, &out, &resume).unwrap();
        assert_eq!(files(&out), files(&wanted));
    }
}

#[cfg(feature = "digest")]
#[test]
fn verifying_finds_a_changed_byte_and_names_its_tensor() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let out = scratch.path().join("out");
    let options = ConvertOptions {
        verify: true,
        ..small()
    };
    assert!(convert(&source, &out, &options).unwrap().verified);
    let resume = ConvertOptions {
        resume: true,
        ..options
    };
    convert(&source, &out, &resume).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    let place = copy.tensor("all.F32").unwrap().extents[0];
    drop(copy);
    let file = out.join("tensor.data_0");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[place.offset as usize + 5] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    for verify in [true, false] {
        // Without --verify, too: nobody else says that this is what was to be written.
        let resume = ConvertOptions {
            verify,
            ..resume.clone()
        };
        let error = convert(&source, &out, &resume).unwrap_err();
        assert_eq!(error.tensor_name(), Some("all.F32"), "{error}");
    }
}

/// Parts and a journal that says that all of them are there, as of a run that was killed at its end.
#[cfg(feature = "digest")]
fn interrupted(conversion: &Conversion, wanted: &Path, out: &Path) {
    std::fs::create_dir(out).unwrap();
    for name in files(wanted).into_keys() {
        std::fs::copy(wanted.join(&name), parts::part_path(out, &name)).unwrap();
    }
    let path = out.join(JOURNAL_FILE);
    let mut journal = std::fs::File::create(&path).unwrap();
    journal::begin(&mut journal, &path, conversion.fingerprint).unwrap();
    let all = (0..conversion.pieces.len()).collect();
    journal::add(&mut journal, &path, all).unwrap();
}

#[test]
fn a_model_of_the_same_shapes_and_times_is_another_one() {
    let scratch = tempfile::tempdir().unwrap();
    let prints = ["a", "b"].map(|name| {
        let folder = scratch.path().join(name);
        sample(&folder, &[Dtype::F32]);
        for name in files(&folder).into_keys() {
            let file = std::fs::File::options().write(true).open(folder.join(name));
            file.unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        let source = Checkpoint::open(&folder).unwrap();
        let again = Conversion::plan(&source, &small()).unwrap().fingerprint;
        let print = Conversion::plan(&source, &small()).unwrap().fingerprint;
        assert_eq!(print, again);
        print
    });
    assert_ne!(prints[0], prints[1]);
}

#[cfg(feature = "digest")]
#[test]
fn bytes_of_an_earlier_run_are_compared_before_they_are_believed() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let (wanted, out) = (scratch.path().join("wanted"), scratch.path().join("out"));
    convert(&source, &wanted, &small()).unwrap();
    let resume = ConvertOptions {
        resume: true,
        ..small()
    };
    // Under another budget, too: pieces do not depend on it.
    let conversion = Conversion::plan(
        &source,
        &ConvertOptions {
            budget: 128 << 20,
            ..resume.clone()
        },
    )
    .unwrap();
    interrupted(&conversion, &wanted, &out);
    let report = convert(&source, &out, &resume).unwrap();
    assert_eq!(report.resumed_bytes, source.total_bytes());
    assert_eq!(files(&out), files(&wanted));
    std::fs::remove_dir_all(&out).unwrap();

    interrupted(&conversion, &wanted, &out);
    let part = parts::part_path(&out, "tensor.data_0");
    let mut bytes = std::fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let error = convert(&source, &out, &resume).unwrap_err();
    assert!(
        error.to_string().contains("not those of the input"),
        "{error}"
    );
    let both = ConvertOptions {
        force: true,
        ..resume
    };
    let report = convert(&source, &out, &both).unwrap();
    assert_eq!(report.resumed_bytes, 0);
    assert_eq!(files(&out), files(&wanted));
}

#[cfg(feature = "digest")]
#[test]
fn headers_indexes_and_other_files_are_read_back_too() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    for to in Layout::ALL {
        let options = ConvertOptions {
            to: Some(to),
            partitions: Some(2),
            ..small()
        };
        let resume = ConvertOptions {
            resume: true,
            verify: true,
            ..options.clone()
        };
        let wanted = scratch.path().join(format!("wanted-{to}"));
        convert(&source, &wanted, &options).unwrap();
        let conversion = Conversion::plan(&source, &resume).unwrap();
        for name in files(&wanted).into_keys() {
            if name.starts_with("tensor.data") {
                continue;
            }
            // As of a run that was killed among its renames.
            let out = scratch.path().join(format!("out-{to}-{name}"));
            interrupted(&conversion, &wanted, &out);
            std::fs::rename(out.join(JOURNAL_FILE), out.join(INCOMPLETE_FILE)).unwrap();
            let part = parts::part_path(&out, &name);
            let mut bytes = std::fs::read(&part).unwrap();
            bytes[1] ^= 1;
            std::fs::write(&part, bytes).unwrap();
            let error = convert(&source, &out, &resume).unwrap_err();
            assert_eq!(error.path(), Some(&*out.join(&name)), "{error}");
            assert!(!out.join(&name).exists());
        }
    }
}

#[test]
fn what_was_killed_before_it_wrote_anything_down_is_started() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    for begun in [None, Some("tensora-con")] {
        let out = scratch.path().join(format!("out{}", begun.is_some()));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join(OutputFolder::LOCK_NAME), b"").unwrap();
        if let Some(begun) = begun {
            std::fs::write(out.join(JOURNAL_FILE), begun).unwrap();
            std::fs::write(parts::part_path(&out, "tensor.data_0"), b"").unwrap();
            // Without a word nothing of it goes.
            let error = convert(&source, &out, &small()).unwrap_err();
            assert!(error.to_string().contains("option resume"), "{error}");
        }
        let resume = ConvertOptions {
            resume: true,
            ..small()
        };
        convert(&source, &out, &resume).unwrap();
        Checkpoint::open(&out).unwrap();
    }
}

#[test]
fn what_nobody_has_agreed_to_replace_is_not_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let other = sample(&scratch.path().join("b"), &[Dtype::F32]);
    let out = scratch.path().join("out");
    convert(&other, &out, &small()).unwrap();
    let before = files(&out);
    let resume = ConvertOptions {
        resume: true,
        ..small()
    };
    // Nothing was begun, another conversion was, or this one was and the files came later.
    let strange = Fingerprint::new();
    let own = Conversion::plan(&source, &resume).unwrap().fingerprint;
    for print in [None, Some(strange), Some(own)] {
        let path = out.join(JOURNAL_FILE);
        if let Some(print) = print {
            let mut journal = std::fs::File::create(&path).unwrap();
            journal::begin(&mut journal, &path, print).unwrap();
        }
        let error = convert(&source, &out, &resume).unwrap_err();
        assert!(error.to_string().contains("force"), "{error}");
        let mut found = files(&out);
        found.remove(JOURNAL_FILE);
        assert_eq!(found, before);
    }
    let both = ConvertOptions {
        force: true,
        ..resume
    };
    convert(&source, &out, &both).unwrap();
    assert_eq!(
        everything(&Checkpoint::open(&out).unwrap()),
        everything(&source)
    );
}

#[test]
fn the_list_of_what_goes_survives_a_crash() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let forced = ConvertOptions {
        to: Some(Layout::SafeTensors),
        force: true,
        resume: true,
        ..small()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &forced).unwrap();
    let out = scratch.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let path = out.join(INCOMPLETE_FILE);
    let mut mark = std::fs::File::create(&path).unwrap();
    let print = Conversion::plan(&source, &forced).unwrap().fingerprint;
    journal::begin(&mut mark, &path, print).unwrap();
    journal::add_obsolete(&mut mark, &path, &["old.safetensors".into()]).unwrap();
    for name in files(&wanted).into_keys() {
        std::fs::copy(wanted.join(&name), parts::part_path(&out, &name)).unwrap();
    }
    std::fs::write(out.join("old.safetensors"), b"of the earlier one").unwrap();
    // With the earlier checkpoint half gone, this looks like one of its own.
    std::fs::write(out.join("adapter_model.safetensors"), b"mine").unwrap();
    convert(&source, &out, &forced).unwrap();
    let expected = [
        "adapter_model.safetensors",
        "config.json",
        "model.safetensors",
    ];
    assert_eq!(files(&out).into_keys().collect::<Vec<_>>(), expected);
}
