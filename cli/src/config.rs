//! The profile that `calibrate` stored, and the engine that loads with it.

use std::path::PathBuf;
use std::sync::OnceLock;

use tensora::{Engine, ErrorKind, Profile};

use crate::failure;
use crate::folders::Folder;

/// Where the profile lies: `profile.json` in `TENSORA_CONFIG_DIR`, else in `tensora` in the
/// configuration folder of the operating system. `None` where there is no home folder.
pub fn profile_path() -> Option<PathBuf> {
    Some(Folder::CONFIG.path()?.join("profile.json"))
}

/// The engine of this process. Its profile is the stored one, where there is a valid one: a file
/// that cannot be used costs a warning and nothing else.
pub fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let make = || match profile_path().map(Profile::load) {
        None => Engine::shared(),
        Some(Ok(profile)) => Engine::with_profile(profile),
        Some(Err(error)) if error.kind() == ErrorKind::NotFound => Engine::shared(),
        Some(Err(error)) => {
            let why = failure::chain(&error.into());
            eprintln!("warning: the stored profile is not used: {why}");
            Engine::shared()
        }
    };
    ENGINE.get_or_init(make).clone()
}
