//! Invites that let nobody in: used up, expired, and another fleet's.
#![cfg(target_os = "linux")]

mod support;

use std::time::Duration;

use support::agents::{Place, number, text};

#[test]
fn an_invite_that_is_used_up_or_expired_is_refused_with_the_reason() {
    let place = Place::new();
    let root = place.start("root", &[]);
    root.done(&["fleet", "new", "family"]);
    let single = root.done(&["fleet", "invite", "--uses", "1"]);
    let brief = root.done(&["fleet", "invite", "--expires", "1s", "--uses", "5"]);

    let (code, joined) = place.run("friend", &["join", text(&single["invite"])]);
    assert_eq!(code, 0, "{joined}");
    let (code, refused) = place.run("second", &["join", text(&single["invite"])]);
    assert_eq!(code, 4, "{refused}");
    assert_eq!(refused["error"]["code"], "refused");
    assert!(
        text(&refused["error"]["message"]).contains("used up"),
        "{refused}"
    );

    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    let left = (number(&brief["expires"]) + 1).saturating_sub(now);
    std::thread::sleep(Duration::from_secs(left));
    let (code, refused) = place.run("late", &["join", text(&brief["invite"])]);
    assert_eq!(code, 4, "{refused}");
    assert!(
        text(&refused["error"]["message"]).contains("expired"),
        "{refused}"
    );

    // None of those who were refused belongs to anything now, also with an agent that tries.
    let stranger = place.start("second", &["--bootstrap", &root.address]);
    assert!(stranger.done(&["status"])["fleet"].is_null());
    let (code, refused) = stranger.run(&["join", text(&single["invite"])]);
    assert_eq!(code, 4, "{refused}");
    assert!(
        root.done(&["peers"])
            .as_array()
            .unwrap()
            .iter()
            .all(|peer| peer["peer"] != stranger.peer)
    );
    assert!(stranger.done(&["peers"]).as_array().unwrap().is_empty());
}

#[test]
fn an_invite_of_another_fleet_lets_nobody_into_this_one() {
    let place = Place::new();
    let theirs = place.start("theirs", &[]);
    theirs.done(&["fleet", "new", "theirs"]);
    let foreign = theirs.done(&["fleet", "invite", "--uses", "5"]);
    let ours = place.start("ours", &[]);
    ours.done(&["fleet", "new", "ours"]);
    let invite = ours.done(&["fleet", "invite", "--uses", "5"]);

    let member = place.start("member", &[]);
    member.done(&["join", text(&invite["invite"])]);
    let (code, refused) = member.run(&["join", text(&foreign["invite"])]);
    assert_eq!(code, 4, "{refused}");
    assert!(
        text(&refused["error"]["message"]).contains("ours"),
        "{refused}"
    );
    assert_eq!(member.done(&["status"])["fleet"]["name"], "ours");

    // A member of the other fleet gets no connection to this one.
    let (code, joined) = place.run("foreigner", &["join", text(&foreign["invite"])]);
    assert_eq!(code, 0, "{joined}");
    let foreigner = place.start("foreigner", &["--bootstrap", &ours.address]);
    std::thread::sleep(Duration::from_secs(3));
    let strangers = ours.done(&["peers"]);
    assert!(
        strangers
            .as_array()
            .unwrap()
            .iter()
            .all(|peer| peer["peer"] != foreigner.peer)
    );
}
