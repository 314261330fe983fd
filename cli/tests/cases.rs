//! The demo's proof on every checkpoint of the corpus that is to be accepted, and plain messages
//! for those that are not.

mod common;

use std::path::Path;

use common::Sandbox;

#[test]
fn the_demo_proves_the_accepted_cases_and_refuses_the_others() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases");
    let table = std::fs::read_to_string(cases.join("EXPECT.tsv")).unwrap();
    let mut lines = table
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let headings = lines.next().unwrap();
    let column = |name: &str| {
        headings
            .iter()
            .position(|heading| *heading == name)
            .unwrap()
    };
    let (kind, format, load_path) = (column("kind"), column("format"), column("load_path"));
    let sandbox = Sandbox::new();
    let (mut accepted, mut refused) = (0, 0);
    for case in lines {
        let path = cases.join(case[load_path]);
        let mut program = sandbox.program("demo");
        match case[format] {
            // The whole folder is a Hub cache.
            "hf" => program
                .env("HF_HUB_CACHE", &path)
                .args(["--model-id", "org/name"]),
            _ => program.arg("--path").arg(&path),
        };
        let output = program.output().unwrap();
        if case[kind] == "ok" {
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", case[0]);
            assert!(
                text.contains("All bytes are equal: "),
                "{}: {text}",
                case[0]
            );
            accepted += 1;
        } else {
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", case[0]);
            assert!(error.starts_with("error: "), "{}: {error}", case[0]);
            assert_eq!(error.lines().count(), 1, "{}: {error}", case[0]);
            refused += 1;
        }
    }
    assert!(
        accepted > 15 && refused > 15,
        "{accepted} accepted, {refused} refused"
    );
}
