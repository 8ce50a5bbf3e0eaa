use proptest::prelude::*;

use super::*;

fn offer() -> Offer {
    Offer {
        name: "vm1".into(),
        size_bytes: 1 << 30,
        read_only: false,
        snapshots: vec![
            ("monday".into(), Uuid::from_u128(1)),
            ("tuesday".into(), Uuid::from_u128(2)),
        ],
    }
}

fn fixed() -> Handshake {
    Handshake::begin(3u32.to_be_bytes()).expect("flags that exist")
}

/// An answer to an option: its kind, and its data.
type Answer = (u32, Vec<u8>);

fn answers(option: u32, mut bytes: &[u8]) -> Vec<Answer> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at(20);
        assert_eq!(head[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(head[8..12], option.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        let (data, rest) = rest.split_at(number(16) as usize);
        list.push((number(12), data.to_vec()));
        bytes = rest;
    }
    list
}

fn ask(handshake: &mut Handshake, option: u32, data: &[u8]) -> (Next, Vec<Answer>) {
    let mut out = Vec::new();
    let next = handshake.option(option, Some(data), Some(&offer()), &mut out);
    (next.expect("an answer"), answers(option, &out))
}

fn kinds(answers: &[Answer]) -> Vec<u32> {
    answers.iter().map(|(kind, _)| *kind).collect()
}

fn go(name: &str, asked: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((asked.len() as u16).to_be_bytes());
    data.extend(asked.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

/// The names that contexts are told by.
fn named(answers: &[Answer]) -> Vec<String> {
    let told = answers
        .iter()
        .filter(|(kind, _)| *kind == reply::META_CONTEXT);
    told.map(|(_, data)| String::from_utf8(data[4..].to_vec()).expect("a text"))
        .collect()
}

#[test]
fn an_export_is_reached_by_its_name_or_by_none() {
    for name in ["", "vm1"] {
        let (next, told) = ask(&mut fixed(), option::GO, &go(name, &[info::BLOCK_SIZE]));
        assert_eq!(next, Next::Requests(Agreed::default()));
        assert_eq!(kinds(&told), [reply::INFO, reply::INFO, reply::ACK]);
        assert_eq!(told[0].1.len(), 12);
        assert_eq!(told[0].1[2..10], (1u64 << 30).to_be_bytes());
        assert_eq!(told[1].1, [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]);
    }
    let (next, told) = ask(&mut fixed(), option::GO, &go("vm2", &[]));
    assert_eq!(
        (next, &kinds(&told)[..]),
        (Next::Option, &[reply::UNKNOWN][..])
    );
    assert!(String::from_utf8_lossy(&told[0].1).contains("vm1"));
}

#[test]
fn info_leaves_the_client_in_the_handshake() {
    let asked = [info::NAME, info::DESCRIPTION, 99];
    let (next, told) = ask(&mut fixed(), option::INFO, &go("", &asked));
    assert_eq!(next, Next::Option);
    assert_eq!(
        kinds(&told),
        [reply::INFO, reply::INFO, reply::INFO, reply::ACK]
    );
    assert_eq!(told[1].1, b"\0\x01vm1");
}

#[test]
fn an_export_that_is_gone_is_unknown_and_ends_clients_that_hear_no_errors() {
    let mut out = Vec::new();
    let next = fixed().option(option::GO, Some(&go("", &[])), None, &mut out);
    assert_eq!(next, Ok(Next::Option));
    assert_eq!(kinds(&answers(option::GO, &out)), [reply::UNKNOWN]);
    let next = fixed().option(option::EXPORT_NAME, Some(b""), None, &mut out);
    assert_eq!(next, Err(Ended::NoExport));
    let next = fixed().option(option::EXPORT_NAME, Some(b"vm2"), Some(&offer()), &mut out);
    assert_eq!(next, Err(Ended::NoExport));
}

#[test]
fn a_client_of_the_first_newstyle_gets_its_export_with_padding() {
    let mut old = Handshake::begin([0; 4]).expect("no flags are flags");
    let mut out = Vec::new();
    let next = old.option(option::EXPORT_NAME, Some(b"vm1"), Some(&offer()), &mut out);
    assert_eq!(next, Ok(Next::Requests(Agreed::default())));
    assert_eq!(out.len(), 8 + 2 + 124);
    let mut old = Handshake::begin([0; 4]).expect("no flags are flags");
    let next = old.option(option::LIST, Some(b""), Some(&offer()), &mut out);
    assert_eq!(next, Err(Ended::NotFixed(option::LIST)));
    assert_eq!(Handshake::begin([0, 0, 0, 4]).err(), Some(Ended::Flags(4)));
}

#[test]
fn contexts_need_structured_replies_first() {
    let mut handshake = fixed();
    let set = contexts("vm1", &[ALLOCATION]);
    let (_, told) = ask(&mut handshake, option::SET_META_CONTEXT, &set);
    assert_eq!(kinds(&told), [reply::INVALID]);
    ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let (_, told) = ask(&mut handshake, option::SET_META_CONTEXT, &set);
    assert_eq!(kinds(&told), [reply::META_CONTEXT, reply::ACK]);
    let (next, _) = ask(&mut handshake, option::GO, &go("", &[]));
    let agreed = Agreed {
        structured: true,
        contexts: vec![Context::Allocation],
    };
    assert_eq!(next, Next::Requests(agreed));
}

#[test]
fn contexts_are_listed_by_wildcards_and_chosen_by_name_alone() {
    let mut handshake = fixed();
    ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let mut list = |queries: &[&str]| {
        let (_, told) = ask(
            &mut handshake,
            option::LIST_META_CONTEXT,
            &contexts("", queries),
        );
        assert_eq!(kinds(&told).last(), Some(&reply::ACK));
        named(&told)
    };
    let [monday, tuesday] = ["monday", "tuesday"].map(|name| format!("{CHANGED}{name}"));
    assert_eq!(list(&[]), [ALLOCATION, &monday, &tuesday]);
    assert_eq!(list(&["base:"]), [ALLOCATION]);
    assert_eq!(list(&["qemu:"]), [&*monday, &tuesday]);
    assert_eq!(list(&[CHANGED, "x-no:thing"]), [&*monday, &tuesday]);
    assert_eq!(list(&[&tuesday]), [&*tuesday]);
    let mut set = |queries: &[&str]| {
        ask(
            &mut handshake,
            option::SET_META_CONTEXT,
            &contexts("", queries),
        );
        handshake.agreed.contexts.clone()
    };
    assert_eq!(set(&["base:", "qemu:", CHANGED]), []);
    let chosen = [
        Context::Allocation,
        Context::ChangedSince(Uuid::from_u128(2)),
    ];
    assert_eq!(
        set(&[&tuesday, "qemu:dirty-bitmap:never", ALLOCATION]),
        chosen
    );
    assert_eq!(set(&[&tuesday, ALLOCATION, ALLOCATION]), chosen);
    assert_eq!(set(&["nonsense"]), [], "a choice that fails leaves none");
}

#[test]
fn more_contexts_or_queries_than_the_bound_are_refused() {
    let mut handshake = fixed();
    ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let mut offer = offer();
    offer.snapshots = (0..=CONTEXTS_LISTED_MAX)
        .map(|at| (at.to_string(), Uuid::from_u128(at as u128)))
        .collect();
    let names: Vec<_> = (0..=CONTEXTS_MAX)
        .map(|at| format!("{CHANGED}{at}"))
        .collect();
    let names: Vec<_> = names.iter().map(|name| &**name).collect();
    let many = vec![ALLOCATION; QUERIES_MAX as usize + 1];
    for (option, queries) in [
        (option::SET_META_CONTEXT, &names[..]),
        (option::LIST_META_CONTEXT, &[]),
        (option::LIST_META_CONTEXT, &many),
    ] {
        let mut out = Vec::new();
        let data = contexts("", queries);
        let next = handshake.option(option, Some(&data), Some(&offer), &mut out);
        assert_eq!(next, Ok(Next::Option));
        assert_eq!(kinds(&answers(option, &out)), [reply::TOO_BIG]);
        assert_eq!(handshake.agreed.contexts, []);
    }
}

#[test]
fn tls_and_unknown_options_are_refused_by_name() {
    let (next, told) = ask(&mut fixed(), option::STARTTLS, &[]);
    assert_eq!(
        (next, &kinds(&told)[..]),
        (Next::Option, &[reply::POLICY][..])
    );
    assert!(String::from_utf8_lossy(&told[0].1).contains("TLS"));
    for unknown in [0, 4, 11, 12, u32::MAX] {
        let (next, told) = ask(&mut fixed(), unknown, b"whatever");
        assert_eq!(
            (next, &kinds(&told)[..]),
            (Next::Option, &[reply::UNSUPPORTED][..])
        );
    }
    let (next, told) = ask(&mut fixed(), option::ABORT, b"whatever");
    assert_eq!(
        (next, &kinds(&told)[..]),
        (Next::Goodbye, &[reply::ACK][..])
    );
}

#[test]
fn an_option_that_is_cut_off_or_too_long_is_refused_and_the_next_one_answered() {
    let whole = go("vm1", &[info::NAME, info::BLOCK_SIZE]);
    let mut handshake = fixed();
    for len in 0..whole.len() {
        let (next, told) = ask(&mut handshake, option::GO, &whole[..len]);
        assert_eq!(
            (next, &kinds(&told)[..]),
            (Next::Option, &[reply::INVALID][..]),
            "{len}"
        );
    }
    for option in [option::LIST, option::STRUCTURED_REPLY, option::STARTTLS] {
        let (_, told) = ask(&mut handshake, option, b"x");
        assert_eq!(kinds(&told), [reply::INVALID]);
    }
    let mut out = Vec::new();
    let next = handshake.option(option::LIST, None, Some(&offer()), &mut out);
    assert_eq!(next, Ok(Next::Option));
    assert_eq!(kinds(&answers(option::LIST, &out)), [reply::TOO_BIG]);
    let (_, told) = ask(&mut handshake, option::LIST, &[]);
    assert_eq!(kinds(&told), [reply::SERVER, reply::ACK]);
    assert!(told[0].1.starts_with(b"\0\0\0\x03vm1"));
}

#[test]
fn a_handshake_that_does_not_end_is_ended() {
    let mut handshake = fixed();
    for _ in 0..OPTIONS_MAX {
        ask(&mut handshake, option::LIST, &[]);
    }
    let next = handshake.option(option::LIST, Some(&[]), None, &mut Vec::new());
    assert_eq!(next, Err(Ended::TooMany));
}

#[test]
fn what_is_no_option_ends_the_connection() {
    let header = |magic: u64, len: u32| {
        let bytes = [
            &magic.to_be_bytes()[..],
            &7u32.to_be_bytes(),
            &len.to_be_bytes(),
        ]
        .concat();
        parse_option(&bytes.try_into().expect("16 bytes"))
    };
    assert_eq!(header(OPTION_MAGIC, 5), Ok((7, 5)));
    assert_eq!(header(OPTION_MAGIC + 1, 5), Err(Ended::NoOption));
    let long = OPTION_BYTES_SKIPPED_MAX + 1;
    assert_eq!(header(OPTION_MAGIC, long), Err(Ended::TooLong(long)));
}

proptest! {
    #[test]
    fn whatever_options_say_answers_are_bounded_and_whole(
        options in proptest::collection::vec((0u32..13, proptest::collection::vec(any::<u8>(), 0..60)), 0..20),
    ) {
        let mut handshake = fixed();
        for (option, data) in options {
            let mut out = Vec::new();
            match handshake.option(option, Some(&data), Some(&offer()), &mut out) {
                Ok(Next::Option) => {
                    let told = answers(option, &out);
                    let last = told.last().map_or(0, |(kind, _)| *kind);
                    prop_assert!(last == reply::ACK || last >= reply::UNSUPPORTED);
                    prop_assert!(out.len() < 1 << 16);
                }
                Ok(Next::Requests(agreed)) => {
                    prop_assert!(agreed.structured || agreed.contexts.is_empty());
                    break;
                }
                Ok(Next::Goodbye) | Err(_) => break,
            }
        }
    }
}
