//! Names of the layouts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::serverlessllm::INDEX_FILE;
use crate::text;

/// How a checkpoint is laid out in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// SafeTensors files, one or many with an index.
    SafeTensors,
    /// `tensor_index.json` and partition files.
    ServerlessLlm,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 2] = [Layout::SafeTensors, Layout::ServerlessLlm];

    /// The spelling used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Layout::SafeTensors => "safetensors",
            Layout::ServerlessLlm => "serverlessllm",
        }
    }

    /// The file without which a folder holds no checkpoint of this layout, after "no".
    pub(crate) fn looks_for(self) -> String {
        match self {
            Layout::SafeTensors => ".safetensors file".to_owned(),
            Layout::ServerlessLlm => INDEX_FILE.to_owned(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A layout name that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLayout(String);

impl fmt::Display for UnknownLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown layout {}; use {}",
            text::quoted(&self.0),
            Layout::ALL.map(Layout::name).join(" or ")
        )
    }
}

impl std::error::Error for UnknownLayout {}

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|layout| layout.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownLayout(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_the_same_for_text_and_json() {
        for layout in Layout::ALL {
            let name = layout.name();
            assert_eq!(name.parse(), Ok(layout));
            assert_eq!(layout.to_string(), name);
            assert_eq!(serde_json::to_value(layout).unwrap(), name);
        }
        let error = "gguf".parse::<Layout>().unwrap_err();
        assert!(error.to_string().contains("serverlessllm"));
    }
}
