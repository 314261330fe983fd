//! Tensors as DLPack has them: <https://dmlc.github.io/dlpack/latest/c_api.html>, versions 0.x and 1.x.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use tensora::{Dtype, Tensor, contiguous_strides};

/// Memory of the CPU: its type in DLPack, and its number.
pub const CPU: (i32, i32) = (1, 0);

/// The version whose dtypes are used here.
const VERSION: Version = Version { major: 1, minor: 1 };

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct View {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    view: View,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    view: View,
}

/// What a consumer holds: the struct that it sees, first, and everything that this points to.
#[repr(C)]
struct Held<T> {
    seen: T,
    _tensor: Tensor,
    /// The dimensions, then the strides, in elements.
    _numbers: Box<[i64]>,
}

/// A capsule with the tensor's memory, which the consumer keeps alive.
pub fn capsule(py: Python<'_>, tensor: &Tensor, versioned: bool) -> PyResult<Py<PyAny>> {
    let dtype = data_type(tensor.dtype()).ok_or_else(|| {
        let (name, dtype) = (tensor.name(), tensor.dtype());
        PyBufferError::new_err(format!("{name}: DLPack has no packed dtype for {dtype}"))
    })?;
    let mut shape = tensor.shape().to_vec();
    if let (true, Some(last)) = (dtype.lanes > 1, shape.last_mut()) {
        *last /= u64::from(dtype.lanes);
    }
    let ndim = shape.len();
    let strides = contiguous_strides(&shape);
    // Nobody goes by strides that are longer: there are no elements then.
    let strides = strides.iter().map(|&n| Ok(n.min(i64::MAX as u64) as i64));
    let numbers = shape.iter().map(|&n| i64::try_from(n)).chain(strides);
    let mut numbers: Box<[i64]> = numbers.collect::<Result<_, _>>().map_err(|_| {
        let (name, shape) = (tensor.name(), tensor.shape());
        PyBufferError::new_err(format!("{name}: DLPack has no dimensions as in {shape:?}"))
    })?;
    let view = View {
        data: tensor.as_mut_ptr().cast(),
        device: Device {
            kind: CPU.0,
            id: CPU.1,
        },
        ndim: ndim as i32,
        dtype,
        shape: numbers.as_mut_ptr(),
        strides: numbers[ndim..].as_mut_ptr(),
        byte_offset: 0,
    };
    let context = std::ptr::null_mut();
    let tensor = tensor.clone();
    match versioned {
        true => wrapped(
            py,
            ManagedVersioned {
                version: VERSION,
                context,
                deleter: Some(delete::<ManagedVersioned>),
                flags: 0,
                view,
            },
            tensor,
            numbers,
            c"dltensor_versioned",
            forget_versioned,
        ),
        false => wrapped(
            py,
            Managed {
                view,
                context,
                deleter: Some(delete::<Managed>),
            },
            tensor,
            numbers,
            c"dltensor",
            forget,
        ),
    }
}

fn wrapped<T>(
    py: Python<'_>,
    seen: T,
    tensor: Tensor,
    numbers: Box<[i64]>,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Py<PyAny>> {
    let held = Box::into_raw(Box::new(Held {
        seen,
        _tensor: tensor,
        _numbers: numbers,
    }));
    // SAFETY: the pointer is not null, and the name lives for ever.
    let capsule = unsafe { ffi::PyCapsule_New(held.cast(), name.as_ptr(), Some(destructor)) };
    if capsule.is_null() {
        // SAFETY: made above, and nobody else has seen it.
        drop(unsafe { Box::from_raw(held) });
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference, which is ours.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
}

/// The consumer, or a capsule that nobody consumed, is done with the tensor.
unsafe extern "C" fn delete<T>(managed: *mut T) {
    // SAFETY: what it points to is the first field of what `wrapped` leaked, once, and the protocol
    // has the deleter called once.
    drop(unsafe { Box::from_raw(managed.cast::<Held<T>>()) });
}

unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter on a capsule of ours.
    unsafe { release::<Managed>(capsule, c"dltensor") }
}

unsafe extern "C" fn forget_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter on a capsule of ours.
    unsafe { release::<ManagedVersioned>(capsule, c"dltensor_versioned") }
}

/// Frees what a capsule holds, unless a consumer has taken it, which renames the capsule.
unsafe fn release<T>(capsule: *mut ffi::PyObject, name: &CStr) {
    // SAFETY: a capsule that is being destroyed; this sets no error.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: it has this name, so that there is a pointer, and no error.
    let held = unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) };
    // SAFETY: a capsule of this name holds what `wrapped` has put there.
    unsafe { delete::<T>(held.cast()) }
}

/// Code, bits and lanes of a dtype; `None` for 6-bit floats, whose packing DLPack cannot say.
fn data_type(dtype: Dtype) -> Option<DataType> {
    let (code, lanes) = match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => (0, 1),
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => (1, 1),
        Dtype::F16 | Dtype::F32 | Dtype::F64 => (2, 1),
        Dtype::BF16 => (4, 1),
        Dtype::C64 => (5, 1),
        Dtype::Bool => (6, 1),
        Dtype::F8E4M3 => (10, 1),
        Dtype::F8E4M3Fnuz => (11, 1),
        Dtype::F8E5M2 => (12, 1),
        Dtype::F8E5M2Fnuz => (13, 1),
        Dtype::F8E8M0 => (14, 1),
        // Two in a byte.
        Dtype::F4 => (17, 2),
        _ => return None,
    };
    Some(DataType {
        code,
        bits: dtype.bits() as u8,
        lanes,
    })
}
