//! A preset that was measured, with the machine that it is true of, as a file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::Preset;
use crate::error::{Error, ErrorKind, Result};
use crate::facts::{Facts, SourceFacts};

/// A profile has some hundred bytes; what is longer is something else.
const LARGEST_FILE: u64 = 64 << 10;

const CALIBRATE: &str = "make a new one with `tensora calibrate`, or remove it";

/// The constants that loads are decided with: built in, or measured by `tensora calibrate`.
///
/// A measured profile is used for files on the storage that it was measured on, by processes that
/// may use as many cores as the one that measured; all other loads use the built-in constants.
/// Every [`Decision`](crate::Decision) names the profile that it was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    preset: Preset,
    /// `None`: built in, and true of no machine in particular.
    machine: Option<Machine>,
    path: Option<PathBuf>,
}

/// What a profile was measured on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Operating system and architecture, such as `linux x86_64`.
    pub platform: String,
    /// Cores that the process could use.
    pub cores: usize,
    /// The file system, as in [`SourceFacts::filesystem`].
    pub filesystem: String,
    /// What it lies on, as in [`SourceFacts::device`].
    pub device: Option<String>,
}

impl Machine {
    /// The machine that `facts` describe, and the storage of one source on it.
    pub fn of(facts: &Facts, source: &SourceFacts) -> Self {
        Self {
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cores: facts.cores,
            filesystem: source.filesystem.clone(),
            device: source.device.clone(),
        }
    }

    fn is_below(&self, source: &SourceFacts) -> bool {
        self.filesystem == source.filesystem && self.device == source.device
    }
}

/// The file. Its version changes when a field does.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    machine: Machine,
    preset: Preset,
}

/// What is read first of a file of any version.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Profile {
    /// The version of the files that [`store`](Self::store) writes and [`load`](Self::load) reads.
    pub const VERSION: u32 = 1;

    /// The name of [`Profile::default`] in decisions.
    pub const BUILT_IN: &str = "built-in";

    /// A profile of constants that were measured on `machine`.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a constant out of its range.
    pub fn measured(preset: Preset, machine: Machine) -> Result<Self> {
        preset.check()?;
        Ok(Self {
            preset,
            machine: Some(machine),
            path: None,
        })
    }

    /// Reads a profile that [`store`](Self::store) wrote.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) and [`Io`](ErrorKind::Io);
    /// [`Unsupported`](ErrorKind::Unsupported) for a file of another version;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for anything that is no valid profile.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let io = |action: &str, error| Error::io(action, &path, error);
        let file = File::open(&path).map_err(|error| io("open", error))?;
        let mut bytes = Vec::new();
        let read = file.take(LARGEST_FILE + 1).read_to_end(&mut bytes);
        read.map_err(|error| io("read", error))?;
        let parsed = if bytes.len() as u64 > LARGEST_FILE {
            let what = format!("a profile has at most {LARGEST_FILE} bytes, and this file more");
            Err(Error::new(ErrorKind::InvalidArgument, what))
        } else {
            Self::parse(&bytes)
        };
        let parsed = parsed.map_err(|error| error.at(&path).help(CALIBRATE))?;
        Ok(Self {
            path: Some(path),
            ..parsed
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let invalid = |error: serde_json::Error| {
            Error::new(ErrorKind::InvalidArgument, "not a valid profile").because(error)
        };
        let Version { version } = serde_json::from_slice(bytes).map_err(invalid)?;
        if version != Self::VERSION {
            let what = format!(
                "a profile of version {version}, where {} is read",
                Self::VERSION
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(invalid)?;
        Self::measured(stored.preset, stored.machine)
    }

    /// Writes the profile to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for the built-in profile, which is true of
    /// no machine; [`NotFound`](ErrorKind::NotFound) when the folder does not exist;
    /// [`Io`](ErrorKind::Io).
    pub fn store(&self, path: impl Into<PathBuf>) -> Result<()> {
        let path = path.into();
        let Some(machine) = self.machine.clone() else {
            let what = "the built-in profile was measured on no machine of yours";
            return Err(Error::new(ErrorKind::InvalidArgument, what).at(path));
        };
        let stored = Stored {
            version: Self::VERSION,
            machine,
            preset: self.preset,
        };
        let mut bytes = serde_json::to_vec_pretty(&stored).expect("numbers and texts are JSON");
        bytes.push(b'\n');
        replace(&path, &bytes).map_err(|error| Error::io("write", &path, error))
    }

    /// Its constants.
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// What it was measured on; `None` for the built-in one.
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// The file that it came from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The constants for a load from the sources with these numbers.
    pub(crate) fn applied(&self, facts: &Facts, sources: &[u32]) -> Applied {
        let built_in = |name: String| Applied {
            preset: Preset::default(),
            name,
            measured: false,
        };
        let Some(machine) = &self.machine else {
            return Applied {
                preset: self.preset,
                ..built_in(self.to_string())
            };
        };
        if machine.cores != facts.cores {
            let (then, now) = (machine.cores, facts.cores);
            let why = format!("{self} was measured with {then} cores, not {now}");
            return built_in(format!("{} ({why})", Self::BUILT_IN));
        }
        let elsewhere = sources
            .iter()
            .map(|&source| &facts.sources[source as usize])
            .find(|source| !machine.is_below(source));
        if let Some(source) = elsewhere {
            let why = format!(
                "{self} was measured on {}, not {}",
                place(&machine.filesystem, machine.device.as_deref()),
                place(&source.filesystem, source.device.as_deref()),
            );
            return built_in(format!("{} ({why})", Self::BUILT_IN));
        }
        Applied {
            preset: self.preset,
            name: self.to_string(),
            measured: true,
        }
    }
}

/// The constants of one load, and where they come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) preset: Preset,
    /// The name of the profile, and why it is not another.
    pub(crate) name: String,
    /// Whether they were measured on the storage of this load.
    pub(crate) measured: bool,
}

impl From<Preset> for Applied {
    fn from(preset: Preset) -> Self {
        Self {
            preset,
            name: Profile::BUILT_IN.to_owned(),
            measured: false,
        }
    }
}

/// Writes a file beside `path` and puts it into its place: readers find the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidInput)?
        .to_owned();
    name.push(format!(".tmp-{}-{n}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).open(&temporary)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn place(filesystem: &str, device: Option<&str>) -> String {
    match device {
        Some(device) => format!("{filesystem} on {device}"),
        None => filesystem.to_owned(),
    }
}

/// `built-in`, the path of the file, or `measured`.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, &self.machine) {
            (Some(path), _) => path.display().fmt(f),
            (None, Some(_)) => f.write_str("measured"),
            (None, None) => f.write_str(Self::BUILT_IN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let mut facts = Facts::neutral(2);
        facts.sources[0].filesystem = "ext4".to_owned();
        facts.sources[0].device = Some("nvme0n1".to_owned());
        facts
    }

    fn profile() -> Profile {
        let facts = facts();
        let preset = Preset {
            ring_depth: 64,
            ..Preset::default()
        };
        Profile::measured(preset, Machine::of(&facts, &facts.sources[0])).unwrap()
    }

    #[test]
    fn what_is_stored_is_loaded_and_only_by_this_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        profile().store(&path).unwrap();
        let loaded = Profile::load(&path).unwrap();
        assert_eq!(loaded.preset(), profile().preset());
        assert_eq!(loaded.machine(), profile().machine());
        assert_eq!(loaded.to_string(), path.display().to_string());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

        let text = std::fs::read_to_string(&path).unwrap();
        for (text, kind, says) in [
            (
                text.replace("\"version\": 1", "\"version\": 2"),
                ErrorKind::Unsupported,
                "version 2",
            ),
            (
                text.replace("64", "0"),
                ErrorKind::InvalidArgument,
                "ring_depth",
            ),
            (
                text.replace("ring_depth", "depth"),
                ErrorKind::InvalidArgument,
                "valid",
            ),
            (
                text[..40].to_owned(),
                ErrorKind::InvalidArgument,
                "not a valid",
            ),
            (" ".repeat(70_000), ErrorKind::InvalidArgument, "at most"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Profile::load(&path).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(says), "{error}");
            assert!(error.remedy().is_some());
        }
        let missing = Profile::load(folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_profile_is_used_where_it_was_measured() {
        let facts = facts();
        let here = profile().applied(&facts, &[0]);
        assert!(here.measured && here.preset.ring_depth == 64);
        assert_eq!(here.name, "measured");
        let elsewhere = profile().applied(&facts, &[0, 1]);
        assert_eq!(elsewhere.preset, Preset::default());
        assert_eq!(
            elsewhere.name,
            "built-in (measured was measured on ext4 on nvme0n1, not unknown)"
        );
        let other = Facts { cores: 64, ..facts };
        let other = profile().applied(&other, &[0]);
        assert!(
            other.name.contains("with 2 cores, not 64") && !other.measured,
            "{}",
            other.name
        );
        assert_eq!(
            Profile::default().applied(&other_facts(), &[]).name,
            "built-in"
        );
    }

    fn other_facts() -> Facts {
        Facts::neutral(0)
    }

    #[test]
    fn the_built_in_profile_has_nothing_to_store() {
        let error = Profile::default()
            .store("nowhere/profile.json")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
