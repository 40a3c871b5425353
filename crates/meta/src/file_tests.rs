use super::*;

#[test]
fn a_file_that_is_not_there_is_refused_for_good_and_a_host_without_room_is_asked_again() {
    for (kind, retryable) in [
        (io::ErrorKind::NotFound, false),
        (io::ErrorKind::PermissionDenied, false),
        (io::ErrorKind::TimedOut, true),
        (io::Error::from_raw_os_error(24).kind(), true),
    ] {
        let error = unreadable("/data/bill.pdf", kind.into());
        assert_eq!((error.retryable, error.phase), (retryable, Phase::NotWritten), "{kind:?}");
    }
}
