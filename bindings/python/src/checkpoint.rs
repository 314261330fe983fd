//! Opened checkpoints, and what can be taken from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use tensora::hf_model::{self, Client, Pull};
use tensora::storage::MemorySource;
use tensora::{CancelToken, Layout};

use crate::errors::{checked, refused};
use crate::request::{self, Request};
use crate::stream::Stream;
use crate::tensor::{Tensor, interned};
use crate::wait::{Cancel, interruptible};

/// An opened checkpoint: its headers were read and checked.
#[pyclass(frozen, module = "tensora_py._native")]
pub struct Checkpoint(pub tensora::Checkpoint);

#[pymethods]
impl Checkpoint {
    /// Opens a path, or a model by its id.
    #[staticmethod]
    #[pyo3(signature = (name, layout=None, revision=None, cancel=None))]
    fn open(
        py: Python<'_>,
        name: PathBuf,
        layout: Option<&str>,
        revision: Option<&str>,
        cancel: Option<&Bound<'_, Cancel>>,
    ) -> PyResult<Self> {
        let layout = layout.map(self::layout).transpose()?;
        let token = cancel.map_or_else(CancelToken::default, |cancel| cancel.get().0.clone());
        let opened = interruptible(py, &token, || {
            let path = find(&name, revision, &token, |pull| pull.layout(layout))?;
            open(path, layout)
        })?;
        Ok(Self(opened))
    }

    /// A SafeTensors file that is in memory.
    #[staticmethod]
    fn of_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        let opened = py.detach(|| {
            let source = Arc::new(MemorySource::new("<bytes>", bytes));
            tensora::Checkpoint::from_sources(Layout::SafeTensors, vec![source], None)
        });
        Ok(Self(checked(py, opened)?))
    }

    #[getter]
    fn path(&self) -> &Path {
        self.0.path()
    }

    #[getter]
    fn layout(&self) -> &'static str {
        self.0.layout().name()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.total_bytes()
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metadata = PyDict::new(py);
        for (key, value) in self.0.metadata() {
            metadata.set_item(key, value)?;
        }
        Ok(metadata)
    }

    /// Names in the order of the files.
    fn keys<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyString>> {
        let tensors = self.0.tensors().iter();
        tensors
            .map(|tensor| PyString::new(py, &tensor.name))
            .collect()
    }

    fn __len__(&self) -> usize {
        self.0.tensors().len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.0.tensor(name).is_some()
    }

    /// Dtype, shape and length in bytes.
    fn info<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<(&'py Bound<'py, PyString>, Bound<'py, PyTuple>, u64)> {
        let meta = checked(py, self.0.require(name))?;
        let shape = PyTuple::new(py, meta.shape.iter())?;
        Ok((interned(py, meta.dtype), shape, meta.nbytes()))
    }

    /// Raises unless there is a backend of this name.
    #[staticmethod]
    fn check_backend(name: &str) -> PyResult<()> {
        request::backend(name).map(drop)
    }

    /// Bytes of the tensors that a load would return.
    fn selected_bytes(&self, py: Python<'_>, request: Request) -> PyResult<u64> {
        let (loader, _) = request.loader(py, &self.0)?;
        Ok(checked(py, loader.plan())?.figures().result_bytes)
    }

    /// Everything that was asked for, in memory.
    fn load(&self, py: Python<'_>, request: Request) -> PyResult<Vec<Tensor>> {
        let (loader, token) = request.loader(py, &self.0)?;
        let tensors = interruptible(py, &token, || loader.load())?;
        Ok(tensors.into_iter().map(Tensor).collect())
    }

    /// One whole tensor, as `map` gives it.
    fn tensor(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        let tensor = py.detach(|| self.0.lazy().tensor(name));
        Ok(Tensor(checked(py, tensor)?))
    }

    /// One whole tensor, read now.
    fn read(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        let tensor = py.detach(|| self.0.read(name));
        Ok(Tensor(checked(py, tensor)?))
    }

    /// Mapped, and read when touched.
    fn map(&self, py: Python<'_>, request: Request) -> PyResult<Vec<Tensor>> {
        let selection = request.selection(py)?;
        let tensors = py.detach(|| self.0.lazy().select(selection));
        Ok(checked(py, tensors)?.into_iter().map(Tensor).collect())
    }

    /// One after the other, as they arrive.
    fn stream(&self, py: Python<'_>, request: Request) -> PyResult<Stream> {
        let (loader, token) = request.loader(py, &self.0)?;
        Ok(Stream::new(interruptible(py, &token, || loader.stream())?))
    }

    /// What a load would read, and how, as JSON; and the same for people.
    fn plan(&self, py: Python<'_>, request: Request) -> PyResult<(String, String)> {
        let (loader, token) = request.loader(py, &self.0)?;
        let (plan, schedule) = interruptible(py, &token, || {
            Ok((loader.plan()?.explain(), loader.schedule()?.explain()))
        })?;
        let explained = serde_json::json!({ "plan": plan, "schedule": schedule });
        Ok((explained.to_string(), format!("{plan}\n{schedule}")))
    }
}

/// Opens what is at a path.
pub fn open(path: PathBuf, layout: Option<Layout>) -> tensora::Result<tensora::Checkpoint> {
    match layout {
        Some(layout) => tensora::Checkpoint::options().layout(layout).open(path),
        None => tensora::Checkpoint::open(path),
    }
}

/// The path that a name stands for: itself where it is there, else the snapshot of a model, which is
/// downloaded where it is not in the cache. `adjust` says what is wanted beside its weights.
pub fn find(
    name: &Path,
    revision: Option<&str>,
    token: &CancelToken,
    adjust: impl FnOnce(Pull) -> Pull,
) -> tensora::Result<PathBuf> {
    // A path needs nothing that the environment says about the Hub.
    if name.symlink_metadata().is_ok() {
        return hf_model::resolve(name, revision);
    }
    let client = Client::from_env()?.cancel(token.clone());
    client.resolve(name, revision, adjust)
}

/// A layout by its name.
pub fn layout(name: &str) -> PyResult<Layout> {
    name.parse()
        .map_err(|error: tensora::UnknownLayout| refused(error.to_string()))
}
