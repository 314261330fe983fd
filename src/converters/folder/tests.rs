//! Folders that several writers want, that are abandoned, and that hold what others left.

use std::io::Write as _;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn put(folder: &OutputFolder, name: &str) {
    let mut file = folder.file(name).unwrap();
    file.write_all(b"ours").unwrap();
    file.commit().unwrap();
}

#[test]
fn a_second_writer_is_refused_and_the_first_keeps_its_files() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("a/b");
    let first = OutputFolder::claim_empty(&path).unwrap();
    put(&first, "one");
    for second in [OutputFolder::claim(&path), OutputFolder::claim_empty(&path)] {
        let error = second.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.path(), Some(&*path));
    }
    assert!(OutputFolder::try_claim(&path).unwrap().is_none());
    first.release(|_| Ok(())).unwrap();
    drop(first);
    assert_eq!(names(&path), ["one"]);
    let error = OutputFolder::claim_empty(&path).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    drop(OutputFolder::claim(&path).unwrap());
    assert!(OutputFolder::try_claim(&path).unwrap().is_some());
    assert_eq!(names(&path), ["one"]);
}

#[test]
fn many_writers_at_once_have_one_winner() {
    let scratch = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = scratch.path().join(format!("{round}/out"));
        let write = || -> Result<()> {
            let folder = OutputFolder::claim_empty(&path)?;
            put(&folder, "data");
            folder.release(|_| Ok(()))
        };
        let won = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(write)).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            ended.filter(Result::is_ok).count()
        });
        assert_eq!(won, 1);
        assert_eq!(names(&path), ["data"]);
    }
}

#[test]
fn what_a_killed_process_left_is_no_obstacle_and_goes() {
    let scratch = tempfile::tempdir().unwrap();
    let ours = format!(".x.json.tmp-{}-0", std::process::id());
    let kept = [
        ".git",
        ".x.tmp-1",
        ".x.json.tmp-1-2a",
        ".tmp-1-2",
        ".x.json.tmp--2",
        // Of a name that nobody here gives.
        ".film.mkv.tmp-4194305-0",
        // Of a process that lives.
        &ours,
    ];
    // No process of Linux has this number.
    for name in kept
        .iter()
        .chain(&[OutputFolder::LOCK_NAME, ".x.json.tmp-4194305-0"])
    {
        std::fs::write(scratch.path().join(name), b"").unwrap();
    }
    // A number comes again: this is older than the process that has it now.
    #[cfg(target_os = "linux")]
    {
        let before = scratch
            .path()
            .join(format!(".y.json.tmp-{}-1", std::process::id()));
        let file = File::create(before).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let folder = OutputFolder::claim_empty(scratch.path()).unwrap();
    assert_eq!(names(scratch.path()).len(), kept.len() + 1);
    drop(folder);
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    assert_eq!(names(scratch.path()), kept);
}

#[test]
fn an_abandoned_output_takes_along_what_it_made_and_nothing_else() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("new/out");
    let folder = OutputFolder::claim(&path).unwrap();
    put(&folder, "config.json");
    let pending = folder.file("model.safetensors").unwrap();
    let others = ["tokenizer.json", ".model.safetensors.tmp-1-1"];
    for name in others {
        std::fs::write(path.join(name), b"of others").unwrap();
    }
    drop(folder.abandon());
    for error in [pending.commit().unwrap_err(), folder.file("x").unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
    assert_eq!(names(&path), [others[1], others[0]]);

    let path = scratch.path().join("other");
    let folder = OutputFolder::claim(&path).unwrap();
    put(&folder, "config.json");
    drop(folder);
    assert!(!path.exists());
}

#[test]
fn a_file_of_the_same_name_is_never_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = OutputFolder::claim(scratch.path()).unwrap();
    let pending = folder.file("config.json").unwrap();
    std::fs::write(pending.target(), b"of others").unwrap();
    let error = pending.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("exists already"), "{error}");
    drop(folder);
    assert_eq!(names(scratch.path()), ["config.json"]);
}

#[test]
fn errors_name_the_path() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = OutputFolder::claim(scratch.path()).unwrap();
    for name in ["", "..", "a/b", "/"] {
        let error = folder.file(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
    }
    let file = scratch.path().join("file");
    std::fs::write(&file, b"").unwrap();
    assert_eq!(OutputFolder::claim(&file).unwrap_err().path(), Some(&*file));
}

#[cfg(unix)]
#[test]
fn permissions_are_those_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let plain = scratch.path().join("plain");
    std::fs::write(&plain, b"").unwrap();
    let folder = OutputFolder::claim(scratch.path()).unwrap();
    put(&folder, "ours");
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(scratch.path().join("ours")), mode(plain));
}
