//! The environment variables that people set for the Hub, with the meanings that its own tools give
//! them. Read here only, and only for `from_env`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::http::Token;
use crate::error::{Error, Result};

/// Longest token file that is read, in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// What the environment says about requests.
#[derive(Debug, Default)]
pub(super) struct Environment {
    pub(super) endpoint: Option<String>,
    pub(super) token: Option<Token>,
    pub(super) offline: bool,
    pub(super) symlinks: bool,
}

impl Environment {
    pub(super) fn read() -> Result<Self> {
        Self::from(|name| std::env::var_os(name), std::env::home_dir())
    }

    fn from(var: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Self> {
        let text = |name: &str| {
            let value = var(name)?.into_string().ok()?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let is_true = |name: &str| {
            text(name).is_some_and(|value| {
                ["1", "ON", "YES", "TRUE"].contains(&&*value.to_ascii_uppercase())
            })
        };
        let named = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN"));
        let token = match named {
            Some(token) => Some(token),
            // Whoever says that no token is sent by itself means the file.
            None if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") => None,
            None => token_file(&var, home)?,
        };
        Ok(Self {
            endpoint: text("HF_ENDPOINT"),
            token: token.map(|token| Token::new(&token)).transpose()?,
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            symlinks: !is_true("HF_HUB_DISABLE_SYMLINKS"),
        })
    }
}

/// The token in `HF_TOKEN_PATH`, else in the file `token` of `HF_HOME`.
fn token_file(
    var: &impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Result<Option<String>> {
    let folder = |name: &str| {
        let value = PathBuf::from(var(name).filter(|value| !value.is_empty())?);
        match (value.strip_prefix("~"), &home) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(value),
        }
    };
    let path = folder("HF_TOKEN_PATH").or_else(|| {
        let hf_home = folder("HF_HOME").or_else(|| {
            let cache = folder("XDG_CACHE_HOME").or_else(|| Some(home.clone()?.join(".cache")));
            Some(cache?.join("huggingface"))
        });
        Some(hf_home?.join("token"))
    });
    let Some(path) = path else {
        return Ok(None);
    };
    match path.metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() <= MAX_TOKEN_BYTES => {}
        Ok(_) => {
            let message = "this is no token file: it is not a file, or not a small one";
            return Err(Error::new(crate::ErrorKind::InvalidArgument, message)
                .at(path)
                .help("log in again, or set HF_TOKEN"));
        }
        // Nobody has logged in; or it is somebody else's home, whose tokens are not ours.
        Err(error) => {
            tracing::debug!(path = %crate::text::path(&path), "no token file: {error}");
            return Ok(None);
        }
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            tracing::warn!(path = %crate::text::path(&path), "the token file is not readable, and no token is sent");
            Ok(None)
        }
        Err(error) => Err(Error::io("read the token file", &path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)], home: Option<PathBuf>) -> Environment {
        let var = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Environment::from(var, home).unwrap()
    }

    #[test]
    fn the_token_of_a_variable_wins_over_those_of_files() {
        let home = tempfile::tempdir().unwrap();
        let default = home.path().join(".cache/huggingface");
        let other = home.path().join("hf");
        for folder in [&default, &other] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(default.join("token"), "hf_default\n").unwrap();
        std::fs::write(other.join("token"), "hf_other").unwrap();
        std::fs::write(home.path().join("named"), " hf_named ").unwrap();
        let token = |set: &[(&str, &str)]| {
            let token = read(set, Some(home.path().to_owned())).token;
            token.map(|token| token.expose().to_owned())
        };
        assert_eq!(token(&[]).as_deref(), Some("hf_default"));
        assert_eq!(token(&[("HF_HOME", "~/hf")]).as_deref(), Some("hf_other"));
        let named = [("HF_TOKEN_PATH", "~/named"), ("HF_HOME", "~/hf")];
        assert_eq!(token(&named).as_deref(), Some("hf_named"));
        let both = [("HF_TOKEN", "hf_var\n"), ("HF_HOME", "~/hf")];
        assert_eq!(token(&both).as_deref(), Some("hf_var"));
        let old = [("HF_TOKEN", ""), ("HUGGING_FACE_HUB_TOKEN", "hf_old")];
        assert_eq!(token(&old).as_deref(), Some("hf_old"));
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[("HF_HOME", "/no/such")]), None);
    }

    #[test]
    fn switches_are_on_for_the_words_of_the_python_client() {
        for (value, on) in [
            ("1", true),
            ("yes", true),
            ("True", true),
            ("0", false),
            ("", false),
            ("no", false),
        ] {
            assert_eq!(
                read(&[("HF_HUB_OFFLINE", value)], None).offline,
                on,
                "{value}"
            );
        }
        assert!(read(&[("TRANSFORMERS_OFFLINE", "1")], None).offline);
        assert!(read(&[], None).symlinks);
        assert!(!read(&[("HF_HUB_DISABLE_SYMLINKS", "1")], None).symlinks);
        let set = [("HF_ENDPOINT", "http://127.0.0.1:1")];
        assert_eq!(
            read(&set, None).endpoint.as_deref(),
            Some("http://127.0.0.1:1")
        );
    }
}
