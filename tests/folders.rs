//! Which files of a folder are the checkpoint, and what is said when it is not clear.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tensora::{Checkpoint, Error, ErrorKind, Layout};

/// A SafeTensors file with one byte per name.
fn weights(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            format!(
                r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#,
                i + 1
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(names.iter().map(|_| 1));
    bytes
}

fn index(entries: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<_, _> = entries
        .iter()
        .map(|(name, shard)| ((*name).to_owned(), (*shard).into()))
        .collect();
    serde_json::json!({ "weight_map": map }).to_string().into()
}

/// A folder of these files; SafeTensors files hold one tensor called as the file.
fn folder(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let bytes = match *file {
            "tensor_index.json" => br#"{"part": [0, 1, [1], [1], "u8", 0]}"#.to_vec(),
            file if file.contains(".index.") => index(&[("shard", "shard.safetensors")]),
            file => weights(&[file]),
        };
        add(&folder, file, bytes);
    }
    folder
}

fn add(folder: &TempDir, file: &str, bytes: Vec<u8>) {
    let path = folder.path().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint
        .tensors()
        .iter()
        .map(|tensor| &*tensor.name)
        .collect()
}

fn refused(opened: Result<Checkpoint, Error>, kind: ErrorKind, says: &[&str]) {
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for fact in says {
        assert!(text.contains(fact), "{fact:?} is not in: {text}");
    }
}

#[test]
fn well_known_names_win_in_their_order() {
    let rows: &[(&[&str], &str)] = &[
        (
            &["model.safetensors", "extra.safetensors"],
            "model.safetensors",
        ),
        (
            &[
                "model.safetensors.index.json",
                "model.safetensors",
                "shard.safetensors",
            ],
            "shard",
        ),
        (
            &["model.safetensors", "model.fp16.safetensors"],
            "model.safetensors",
        ),
        (
            &["model.safetensors", "adapter_model.safetensors"],
            "model.safetensors",
        ),
        (
            &["adapter_model.safetensors", "other.safetensors"],
            "adapter_model.safetensors",
        ),
        (
            &[
                "diffusion_pytorch_model.safetensors",
                "diffusion_pytorch_model.fp16.safetensors",
            ],
            "diffusion_pytorch_model.safetensors",
        ),
        (
            &[
                "diffusion_pytorch_model.safetensors.index.json",
                "shard.safetensors",
            ],
            "shard",
        ),
        (
            &["model.fp16.safetensors", "zzz.safetensors"],
            "model.fp16.safetensors",
        ),
        (
            &[
                "model.safetensors.index.fp16.json",
                "model-1-of-1.fp16.safetensors",
                "shard.safetensors",
            ],
            "shard",
        ),
        (
            &["model.fp16.safetensors.index.json", "shard.safetensors"],
            "shard",
        ),
        (
            &["diffusion_pytorch_model.bf16.safetensors"],
            "diffusion_pytorch_model.bf16.safetensors",
        ),
        (&["consolidated.safetensors"], "consolidated.safetensors"),
        (
            &["consolidated.safetensors", "other.safetensors"],
            "other.safetensors",
        ),
        (
            &["any name.safetensors", "README.md", "pytorch_model.bin"],
            "any name.safetensors",
        ),
        (
            &[
                "only.safetensors.index.json",
                "shard.safetensors",
                "only.safetensors",
            ],
            "shard",
        ),
        (
            &[
                "any.safetensors",
                ".hidden.safetensors",
                "x.safetensors.incomplete",
            ],
            "any.safetensors",
        ),
        (
            &["model-00001-of-00001.safetensors"],
            "model-00001-of-00001.safetensors",
        ),
        (
            &[
                "model-00001-of-00001.safetensors",
                "consolidated.safetensors",
            ],
            "model-00001-of-00001.safetensors",
        ),
    ];
    for (files, expected) in rows {
        let folder = folder(files);
        // The index's shard holds a tensor of its own name.
        if files.contains(&"shard.safetensors") {
            add(&folder, "shard.safetensors", weights(&["shard"]));
        }
        let checkpoint =
            Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{files:?}: {error}"));
        assert_eq!(names(&checkpoint), [*expected], "{files:?}");
        assert_eq!(checkpoint.root(), folder.path());
    }
}

#[test]
fn ambiguous_folders_list_the_candidates() {
    let rows: &[&[&str]] = &[
        &["a.safetensors", "b.safetensors"],
        &["model.fp16.safetensors", "model.bf16.safetensors"],
        &["a.safetensors.index.json", "b.safetensors.index.json"],
        &["model-00001-of-00001.safetensors", "model.fp16.safetensors"],
        &["a-1-of-1.safetensors", "b-1-of-1.safetensors"],
        &["a-1-of-1.safetensors", "a-01-of-1.safetensors"],
        &["consolidated.00.safetensors", "consolidated.01.safetensors"],
    ];
    for files in rows {
        let folder = folder(files);
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidArgument,
            "{files:?}: {error}"
        );
        let text = error.to_string();
        assert!(text.contains("give the path"), "{text}");
        for file in files.iter().filter(|file| !file.contains("-of-")) {
            assert!(text.contains(file), "{text}");
        }
        let file = folder.path().join(files[0]);
        if !files[0].ends_with(".json") {
            assert_eq!(names(&Checkpoint::open(file).unwrap()), [files[0]]);
        }
    }
}

#[test]
fn numbered_shards_without_an_index_must_be_complete() {
    let shard = |i: u32, n: u32| format!("model-{i:05}-of-{n:05}.safetensors");
    let of = |numbers: &[u32], n: u32| {
        let files: Vec<String> = numbers.iter().map(|&i| shard(i, n)).collect();
        folder(&files.iter().map(|file| &**file).collect::<Vec<_>>())
    };
    for numbers in [&[1, 2, 3], &[0, 1, 2]] {
        let folder = of(numbers, 3);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.sources().len(), 3);
        assert_eq!(names(&checkpoint), numbers.map(|i| shard(i, 3)));
    }
    for (numbers, missing) in [(&[1, 2][..], 3), (&[2, 3], 1), (&[1, 3], 2), (&[0, 2], 1)] {
        let folder = of(numbers, 3);
        let (name, count) = (shard(missing, 3), "2 of 3");
        refused(
            Checkpoint::open(folder.path()),
            ErrorKind::MissingShard,
            &[&name, count],
        );
    }
    refused(
        Checkpoint::open(of(&[1, 2, 3, 4], 3).path()),
        ErrorKind::InvalidArgument,
        &["4 shards", "parts of 3"],
    );
    let huge = folder(&["m-1-of-18446744073709551615.safetensors"]);
    refused(
        Checkpoint::open(huge.path()),
        ErrorKind::MissingShard,
        &["m-2-of-"],
    );
    let overlapping = of(&[1, 2], 2);
    add(&overlapping, &shard(2, 2), weights(&[&shard(1, 2)]));
    refused(
        Checkpoint::open(overlapping.path()),
        ErrorKind::DuplicateName,
        &[&shard(1, 2), &shard(2, 2)],
    );
}

#[test]
fn folders_without_weights_say_what_is_there() {
    let rows: &[(&[&str], &[&str])] = &[
        (&[], &["it is empty"]),
        (
            &["config.json", "vocab.txt"],
            &["2 files, none of them weights"],
        ),
        (
            &["pytorch_model.bin", "config.json"],
            &["1 weight files", "pytorch_model.bin"],
        ),
        (&["a.gguf", "b.pt"], &["2 weight files", "a.gguf, b.pt"]),
        (&["tensor.data_0"], &["tensor_index.json", "tensor.data_0"]),
        (
            &["unet/model.safetensors", "vae/model.safetensors"],
            &["2 sub-folders (unet, vae)"],
        ),
    ];
    for (files, says) in rows {
        let folder = folder(files);
        let path = folder.path().display().to_string();
        let says: Vec<&str> = says.iter().copied().chain([&*path]).collect();
        refused(Checkpoint::open(folder.path()), ErrorKind::NoWeights, &says);
    }
}

#[test]
fn both_layouts_in_one_folder_need_to_be_told_apart() {
    let both = folder(&["model.safetensors", "tensor_index.json", "tensor.data_0"]);
    let told = |layout: Layout| Checkpoint::options().layout(layout).open(both.path());
    refused(
        Checkpoint::open(both.path()),
        ErrorKind::InvalidArgument,
        &["safetensors or serverlessllm"],
    );
    assert_eq!(
        names(&told(Layout::SafeTensors).unwrap()),
        ["model.safetensors"]
    );
    assert_eq!(names(&told(Layout::ServerlessLlm).unwrap()), ["part"]);
    let index = Checkpoint::open(both.path().join("tensor_index.json")).unwrap();
    assert_eq!(index.layout(), Layout::ServerlessLlm);
    assert_eq!(index.root(), both.path());

    let one = folder(&["model.safetensors"]);
    let told = |layout: Layout| Checkpoint::options().layout(layout).open(one.path());
    let says = ["no tensor_index.json", "it has model.safetensors"];
    refused(told(Layout::ServerlessLlm), ErrorKind::NoWeights, &says);
    let one = folder(&["tensor_index.json", "tensor.data_0"]);
    let told = |layout: Layout| Checkpoint::options().layout(layout).open(one.path());
    let says = ["no .safetensors file", "it has tensor_index.json"];
    refused(told(Layout::SafeTensors), ErrorKind::NoWeights, &says);
}

#[test]
fn files_are_opened_by_what_they_hold() {
    let folder = folder(&[]);
    add(&folder, "weights.bin", weights(&["w"]));
    add(&folder, "odd.json", weights(&["w"]));
    add(&folder, "config.json", b"{\"hidden\": 3}".to_vec());
    let open = |name: &str| Checkpoint::open(folder.path().join(name));
    assert_eq!(names(&open("weights.bin").unwrap()), ["w"]);
    refused(
        open("config.json"),
        ErrorKind::BadIndex,
        &["config.json", "no weight_map"],
    );
    let told = Checkpoint::options().layout(Layout::SafeTensors);
    refused(
        told.open(folder.path().join("odd.json")),
        ErrorKind::BadIndex,
        &["odd.json"],
    );
    refused(open("nothing"), ErrorKind::NotFound, &["nothing"]);
    refused(open("weights.bin/x"), ErrorKind::Io, &["weights.bin/x"]);
    #[cfg(unix)]
    refused(
        Checkpoint::open("/dev/null"),
        ErrorKind::NotAFile,
        &["/dev/null"],
    );
}

#[test]
fn an_index_may_use_sub_folders_and_names_its_missing_files() {
    let shards = folder(&[]);
    let map = [
        ("a", "sub/x.safetensors"),
        ("b", "./y.safetensors"),
        ("c", "y.safetensors"),
    ];
    add(&shards, "model.safetensors.index.json", index(&map));
    add(&shards, "sub/x.safetensors", weights(&["a", "hidden"]));
    add(&shards, "y.safetensors", weights(&["c", "b"]));
    let checkpoint = Checkpoint::open(shards.path()).unwrap();
    assert_eq!(names(&checkpoint), ["a", "c", "b"]);
    assert_eq!(checkpoint.sources().len(), 2);
    assert_eq!(checkpoint.total_bytes(), 3);
    assert!(checkpoint.tensor("hidden").is_none());
    fs::remove_file(shards.path().join("sub/x.safetensors")).unwrap();
    let missing = Path::new("sub").join("x.safetensors").display().to_string();
    refused(
        Checkpoint::open(shards.path()),
        ErrorKind::MissingShard,
        &[&missing],
    );
}

#[test]
fn of_several_bad_shards_the_first_is_reported_every_time() {
    let shards = folder(&[]);
    let files: Vec<String> = (0..40).map(|i| format!("s{i:02}.safetensors")).collect();
    let map: Vec<(&str, &str)> = files.iter().map(|file| (&**file, &**file)).collect();
    add(&shards, "model.safetensors.index.json", index(&map));
    for (i, file) in files.iter().enumerate() {
        // Every third one from the 10th on is cut.
        let mut bytes = weights(&[file]);
        bytes.truncate(bytes.len() - usize::from(i > 9 && i % 3 == 0));
        add(&shards, file, bytes);
    }
    for _ in 0..20 {
        refused(
            Checkpoint::open(shards.path()),
            ErrorKind::Truncated,
            &["s12.safetensors"],
        );
    }
}

#[test]
fn names_that_do_not_exist_get_suggestions() {
    let folder = folder(&[]);
    let all = ["model.layers.0.w", "model.layers.1.w", "lm_head"];
    add(&folder, "model.safetensors", weights(&all));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.require("lm_head").is_ok());
    let error = checkpoint.require("layers.1.w").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
    let text = error.to_string();
    assert!(text.contains("did you mean \"model.layers.1.w\""), "{text}");
    assert!(text.contains("among the 3"), "{text}");
    assert!(format!("{checkpoint:?}").len() < 300);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_dangling_ones_name_their_target() {
    use std::os::unix::fs::symlink;
    let outside = folder(&[]);
    add(&outside, "blob", weights(&["w"]));
    let folder = folder(&[]);
    let link = folder.path().join("model.safetensors");
    symlink(outside.path().join("blob"), &link).unwrap();
    assert_eq!(names(&Checkpoint::open(folder.path()).unwrap()), ["w"]);
    fs::remove_file(outside.path().join("blob")).unwrap();
    let target = outside.path().join("blob").display().to_string();
    refused(
        Checkpoint::open(folder.path()),
        ErrorKind::NotFound,
        &[&target],
    );
    refused(Checkpoint::open(&link), ErrorKind::NotFound, &[&target]);
    add(
        &folder,
        "model.safetensors.index.json",
        index(&[("w", "model.safetensors")]),
    );
    let says = [&*target, "model.safetensors.index.json"];
    refused(
        Checkpoint::open(folder.path()),
        ErrorKind::MissingShard,
        &says,
    );
}

#[cfg(target_os = "linux")]
#[test]
fn paths_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = folder(&[]);
    let inner = folder.path().join(OsStr::from_bytes(b"caf\xe9 \xff"));
    fs::create_dir(&inner).unwrap();
    let file = inner.join(OsStr::from_bytes(b"\xfe-00001-of-00002.safetensors"));
    fs::write(&file, weights(&["w"])).unwrap();
    for path in [&inner, &file] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.sources()[0].path(), file);
    }
}
