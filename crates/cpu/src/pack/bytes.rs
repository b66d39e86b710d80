//! Page-aligned zeroed memory whose allocation may fail.

use std::ptr::NonNull;

use galvani_graph::BackendError;

/// A zeroed, page-aligned buffer. Its pages come into being where they are first written, so that the threads that
/// pack a weight also share the cost of making its memory.
pub struct AlignedBytes {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: plain owned memory.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads; writers go through raw pointers under the kernels' own contract.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// No memory.
    pub fn empty() -> Self {
        AlignedBytes {
            ptr: NonNull::dangling(),
            len: 0,
        }
    }

    /// `len` zero bytes.
    ///
    /// # Errors
    /// When memory is short; `what` says what it was for.
    pub fn zeroed(len: usize, what: &'static str) -> Result<Self, BackendError> {
        if len == 0 {
            return Ok(Self::empty());
        }
        match system::allocate(len) {
            Some(ptr) => Ok(AlignedBytes { ptr, len }),
            None => Err(BackendError::Memory { what, bytes: len }),
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// First byte, to write through. Writers must not race; the kernels' contracts say who writes what.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated by `zeroed` with this length.
            unsafe { system::free(self.ptr, self.len) };
        }
    }
}

/// Large aligned `calloc` would write every page on the calling thread; an anonymous mapping is zero without that.
#[cfg(unix)]
mod system {
    use std::ptr::{self, NonNull};

    pub fn allocate(len: usize) -> Option<NonNull<u8>> {
        // SAFETY: a new private mapping overlaps nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast())
    }

    /// # Safety
    /// `ptr` and `len` are those of one `allocate`.
    pub unsafe fn free(ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller gives back a whole mapping.
        unsafe { libc::munmap(ptr.as_ptr().cast(), len) };
    }
}

#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, 4096).ok()
    }

    pub fn allocate(len: usize) -> Option<NonNull<u8>> {
        // SAFETY: `len` is above zero.
        NonNull::new(unsafe { alloc_zeroed(layout(len)?) })
    }

    /// # Safety
    /// `ptr` and `len` are those of one `allocate`.
    pub unsafe fn free(ptr: NonNull<u8>, len: usize) {
        // SAFETY: the same layout as in `allocate`.
        unsafe {
            dealloc(
                ptr.as_ptr(),
                layout(len).expect("it was allocated with this layout"),
            )
        };
    }
}
