//! The programs where io_uring is forbidden, as in most containers.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

mod common;
#[path = "../../tests/conformance/deny_io_uring.rs"]
mod deny_io_uring;

use common::Sandbox;

/// Runs `test` on a thread that, with the programs it starts, has no io_uring.
fn denied(errno: i32, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            deny_io_uring::deny_io_uring(errno);
            test();
        });
        thread.join().unwrap();
    });
}

#[test]
fn explicit_io_uring_exits_with_3_and_the_reason_and_everything_else_works() {
    for (errno, word) in [(libc::EPERM, "permission denied"), (libc::ENOSYS, "ENOSYS")] {
        let sandbox = Sandbox::new();
        sandbox.sample("a", "safetensors");
        denied(errno, || {
            for args in [
                &["profile", "safetensors", "io-uring", "--path", "a"][..],
                &["demo", "safetensors", "io-uring", "--path", "a"],
                &["tensora", "hash", "a", "--backend", "io-uring"],
                &["tensora", "plan", "a", "--backend", "io_uring"],
                &["convert", "a", "b", "--backend", "io-uring"],
            ] {
                let message = sandbox.fail(3, args[0], &args[1..]);
                assert!(message.contains(word), "{args:?}: {message}");
                assert!(message.contains("default"), "{args:?}: {message}");
            }
            assert!(!sandbox.path("b").exists());
            sandbox.run("profile", &["safetensors", "default", "--path", "a"]);
            sandbox.run("tensora", &["hash", "a"]);
            // One row says why it is empty; the others are there.
            let table = sandbox.run("demo", &["safetensors", "all", "--path", "a"]);
            assert!(table.contains(word), "{table}");
            assert!(table.contains("All bytes are equal"), "{table}");
            let shell = sandbox.run("profile", &["capabilities", "--format", "shell"]);
            assert!(shell.contains("TENSORA_IO_URING=0"), "{shell}");
        });
    }
}
