//! A seccomp filter as containers have one. Programs started from the thread inherit it.

/// From now on `io_uring_setup` answers `errno`, on this thread and on those that it starts.
pub fn deny_io_uring(errno: i32) {
    deny(errno, &[(0, libc::SYS_io_uring_setup as u32)]);
}

/// From now on system calls answer `errno` whose data has these words: byte offset in `struct
/// seccomp_data`, and value. The number of the call is the first word.
pub fn deny(errno: i32, words: &[(u32, u32)]) {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = Vec::new();
    for (number, &(offset, value)) in words.iter().enumerate() {
        // Steps from the one after the jump to the last, which allows.
        let to_last = (2 * (words.len() - number) - 1) as u8;
        steps.push(step(LOAD_WORD, 0, offset));
        steps.push(step(JUMP_IF_EQUAL, to_last, value));
    }
    steps.push(step(RETURN, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    steps.push(step(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: plain numbers.
    let answer = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel copies the program, which lives until the end of this function.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}
