//! The two ways in which a checkpoint lies on disk, and their names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a checkpoint lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One SafeTensors file, or several with an index.
    SafeTensors,
    /// A folder with `tensor_index.json` and partitions `tensor.data_N`.
    ServerlessLlm,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Layout::SafeTensors => "safetensors",
            Layout::ServerlessLlm => "serverlessllm",
        })
    }
}

impl FromStr for Layout {
    type Err = crate::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "safetensors" => Ok(Layout::SafeTensors),
            "serverlessllm" => Ok(Layout::ServerlessLlm),
            other => Err(crate::Error::new(
                crate::ErrorKind::InvalidArgument,
                format!("{other:?} is not a layout"),
            )
            .help("choose safetensors or serverlessllm")),
        }
    }
}
