//! Tests of misuse, which must cause errors and no crash, and of strangers, which must do no harm.

use std::io::Write;
use std::net::TcpStream;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::Duration;

use nccl_net_abi::{NcclResult, v12};

use super::table::*;
use crate::handle::Handle;
use crate::listener::Listener;
use crate::versions::{ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11};

const WRONG: NcclResult = NcclResult::INVALID_ARGUMENT;

#[test]
fn calls_with_invalid_arguments_are_refused() {
    let pair = Pair::new();
    let mut buffer = Buffer::new(pair.send, vec![0; 9]);
    for nobody in [null_mut(), without_provenance_mut(usize::MAX - 7), pair.context] {
        assert_eq!(isend(nobody, &mut buffer, 0), Err(WRONG));
        assert_eq!(irecv(nobody, std::slice::from_mut(&mut buffer), &[0]), Err(WRONG));
        assert_eq!(register(nobody, &mut buffer.bytes), Err(WRONG));
        assert_eq!(deregister(nobody, buffer.registration), Err(WRONG));
        assert_eq!(deregister(pair.send, nobody), Err(WRONG));
        assert_eq!(accept(nobody), Err(WRONG));
        assert_eq!((close_send(nobody), close_receive(nobody)), (Err(WRONG), Err(WRONG)));
        assert_eq!(test(nobody), Err(WRONG));
    }
    assert_eq!(finalize(null_mut()), Err(WRONG));
    assert_eq!(connect(null_mut(), &mut [0; 128]), Err(WRONG));
    assert_eq!(connect(pair.context, &mut [0; 128]), Err(WRONG));
    // The wrong side, and groups of no or too many buffers.
    assert_eq!(isend(pair.receive, &mut buffer, 0), Err(WRONG));
    assert_eq!(irecv(pair.send, std::slice::from_mut(&mut buffer), &[0]), Err(WRONG));
    assert_eq!(close_receive(pair.send), Err(WRONG));
    assert_eq!(irecv(pair.receive, &mut [], &[]), Err(WRONG));
    let mut nine: Vec<Buffer> = (0..9).map(|_| Buffer::new(pair.send, vec![0])).collect();
    assert_eq!(irecv(pair.receive, &mut nine, &[0; 9]), Err(WRONG));
    // Memory that is not registered.
    buffer.registration = null_mut();
    assert_eq!(isend(pair.send, &mut buffer, 0), Err(WRONG));
    pair.close();
    assert_eq!((close_send(pair.send), close_receive(pair.receive)), (Err(WRONG), Err(WRONG)));
    assert_eq!(finalize(pair.context), Err(WRONG));
}

#[test]
fn a_request_that_was_reported_as_done_cannot_be_tested_again() {
    let pair = Pair::new();
    let mut out = Buffer::new(pair.send, vec![1; 64]);
    let mut into = [Buffer::new(pair.receive, vec![0; 64])];
    let received = irecv(pair.receive, &mut into, &[1]).unwrap();
    let sent = isend(pair.send, &mut out, 1).unwrap();
    assert_eq!((wait(received)[0], wait(sent)[0]), (64, 64));
    assert_eq!((test(received), test(sent)), (Err(WRONG), Err(WRONG)));
    pair.close();
    assert_eq!((test(received), test(sent)), (Err(WRONG), Err(WRONG)));
}

#[test]
fn a_sender_that_is_gone_is_a_remote_error() {
    let pair = Pair::new();
    let mut into = [Buffer::new(pair.receive, vec![0; 64])];
    let received = irecv(pair.receive, &mut into, &[1]).unwrap();
    close_send(pair.send).unwrap();
    let error = poll(|| test(received).err());
    assert_eq!(error, NcclResult::REMOTE_ERROR);
    assert_eq!(irecv(pair.receive, &mut into, &[1]), Err(NcclResult::REMOTE_ERROR));
    close_receive(pair.receive).unwrap();
    finalize(pair.context).unwrap();
}

#[test]
fn a_receiver_that_is_gone_is_a_remote_error() {
    let context = init();
    let (mut listener, handle) = Listener::open([127, 0, 0, 1].into(), None).unwrap();
    // SAFETY: both types are 128 bytes without padding.
    let mut handle: [u8; 128] = unsafe { std::mem::transmute::<Handle, [u8; 128]>(handle) };
    let send = poll(|| Some(connect(context, &mut handle).unwrap()).filter(|it| !it.is_null()));
    let peer = poll(|| listener.accept().unwrap());
    let mut out = Buffer::new(send, vec![1; 32 << 20]);
    let sent = isend(send, &mut out, 1).unwrap();
    assert_eq!(test(sent), Ok(None));
    drop(peer);
    assert_eq!(poll(|| test(sent).err()), NcclResult::REMOTE_ERROR);
    close_send(send).unwrap();
    finalize(context).unwrap();
}

#[test]
fn strangers_do_not_disturb_a_listener_that_accepts_many_peers() {
    let context = init();
    let Listening(listener, handle) = listen(context);
    // SAFETY: any 128 bytes are a handle.
    let (address, _) =
        unsafe { std::mem::transmute::<[u8; 128], Handle>(handle) }.target().unwrap();
    let dial = || TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    let (silent, mut wrong, gone) = (dial(), dial(), dial());
    wrong.write_all(&[7; 24]).unwrap();
    drop(gone);
    assert_eq!(accept(listener), Ok(null_mut()));
    for _ in 0..10 {
        let (send, receive) = join(context, listener, &mut handle.clone());
        close_send(send).unwrap();
        close_receive(receive).unwrap();
    }
    drop(silent);
    // SAFETY: the plugin looks the listener up by its number, and never dereferences it.
    let close = || check(unsafe { net().close_listen.unwrap()(listener) });
    assert_eq!((close(), close()), (Ok(()), Err(WRONG)));
    // Nobody listens at this address any more.
    assert_eq!(connect(context, &mut handle.clone()), Err(NcclResult::REMOTE_ERROR));
    finalize(context).unwrap();
}

#[test]
fn a_context_is_finalised_only_once() {
    // The end of the last context also ends the plugin's thread. Other tests may hold contexts, so
    // this test cannot check the end of the thread.
    let (one, two) = (init(), init());
    assert_eq!((finalize(one), finalize(one), finalize(two)), (Ok(()), Err(WRONG), Ok(())));
}

#[test]
fn version_12_describes_the_device_and_all_versions_name_the_plugin() {
    let mut properties = std::mem::MaybeUninit::<v12::Properties>::uninit();
    // SAFETY: there is room for the properties.
    check(unsafe { net().properties.unwrap()(0, properties.as_mut_ptr()) }).unwrap();
    // SAFETY: the successful call has written the properties.
    let properties = unsafe { properties.assume_init() };
    assert_eq!((properties.receives_max, properties.registration_is_global), (8, 1));
    assert_eq!((properties.memory_kinds, properties.rail), (nccl_net_abi::HOST, -1));
    let mut nowhere = std::mem::MaybeUninit::<v12::Properties>::uninit();
    // SAFETY: there is room for the properties of a device, and nothing is written through a null
    // pointer.
    let refused = [(2, nowhere.as_mut_ptr()), (0, null_mut())]
        .map(|(device, into)| check(unsafe { net().properties.unwrap()(device, into) }));
    assert_eq!(refused, [Err(WRONG); 2]);
    let names = [
        net().name,
        ncclNetPlugin_v11.0.name,
        ncclNetPlugin_v10.0.name,
        ncclNetPlugin_v9.0.name,
        ncclNetPlugin_v8.0.name,
    ];
    // SAFETY: names are C strings of the library.
    assert!(names.iter().all(|name| unsafe { std::ffi::CStr::from_ptr(*name) } == c"Reference"));
}
