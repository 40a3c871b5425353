use std::time::Duration;

use super::RedisCoordinatorConfig;

#[test]
fn values_that_cannot_work_are_named_with_what_to_do() {
    let config = RedisCoordinatorConfig::default;
    assert_eq!(config().validate(), Ok(()));
    let second = Duration::from_secs(1);
    let rows = [
        (
            config().with_lease(Duration::from_millis(999)),
            "coordinator.lease: 999ms is out of range; set between 1s and 10m",
        ),
        (config().with_lease(second * 601), "coordinator.lease"),
        (config().with_turn_wait(Duration::ZERO), "coordinator.turn_wait"),
        (config().with_idle_ttl(second * 86_401), "coordinator.idle_ttl"),
        (
            config().with_max_waiters(0),
            "coordinator.max_waiters: no ticket could wait for its turn; set at least 1",
        ),
    ];
    for (config, expected) in rows {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn the_replica_stops_well_before_the_server_gives_its_turns_away() {
    let config = RedisCoordinatorConfig::default();
    assert_eq!(config.margin(Duration::ZERO), Duration::from_millis(1500));
    assert_eq!(config.margin(Duration::from_secs(1)), Duration::from_secs(4));
    assert_eq!(config.command_timeout(), Duration::from_secs(2));
    let short = config.with_lease(Duration::from_millis(1500));
    assert_eq!(short.margin(Duration::ZERO), Duration::from_millis(200));
    assert_eq!(short.command_timeout(), Duration::from_millis(250));
}
