"""The hub: a thread of the driver through which workers in other processes reach their channels.

It passes items on and never looks into them; large ones stay in shared memory, and only descriptors pass.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

from rlinf_core.comm.connection import Connection
from rlinf_core.comm.frames import Frame, Say
from rlinf_core.comm.hub_channel import ChannelSettings, HubChannel
from rlinf_core.comm.member import Member, Post
from rlinf_core.comm.network import LocalListener, listen_at, new_token, peer, place_of, stay_alert
from rlinf_core.comm.ports import HUBS_HERE, DirectPort
from rlinf_core.comm.remote import ChannelHandle
from rlinf_core.errors import ConfigError, RlinfError, suggest

_SILENCE_S = 5.0  # of another machine, after which its connections are closed


class ChannelHub:
    """Makes channels that workers of any process of this machine connect to.

    With `reach`, an address of this machine that others know, workers of other machines connect too.

    ```python
    hub = ChannelHub()
    actions = hub.create("actions", capacity_bytes=64 * 2**20)  # a handle, to be given to workers
    with actions.connect("driver") as channel:
        channel.put(array, key=(0, 1))
    ```
    """

    def __init__(self, reach: str = "") -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self._token = new_token()
        self._listener = LocalListener()
        self.address: str = self._listener.address
        self._outside = listen_at(reach) if reach else None
        self._elsewhere = place_of(self._outside) if self._outside is not None else ""
        self._channels: dict[str, HubChannel] = {}
        self._seats: dict[Connection | DirectPort, tuple[HubChannel, Member]] = {}
        self._connections: set[Connection] = set()
        self._stuck: set[Connection] = set()
        self._changed: set[HubChannel] = set()
        self._numbers = itertools.count(1)
        self._closed = self._ended = False
        self._selector = selectors.DefaultSelector()
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_there.setblocking(False)
        self._selector.register(self._listener.socket, selectors.EVENT_READ, "listener")
        if self._outside is not None:
            self._selector.register(self._outside, selectors.EVENT_READ, "outside")
        self._selector.register(self._wake_here, selectors.EVENT_READ, "wake")
        self._thread = threading.Thread(target=self._run, name="channel-hub", daemon=True)
        self._thread.start()
        HUBS_HERE[self.address] = self

    def create(
        self,
        name: str,
        capacity_bytes: float = 256 * 2**20,
        *,
        capacity: float = float("inf"),
        ordered: bool = False,
        consumers: int = 0,
        producers: int = 1,
        redeliver: bool = False,
    ) -> ChannelHandle:
        """A new channel. `capacity_bytes` bounds what is inside per key, `capacity` its weight.

        The others are as for `Channel`. `redeliver`: what a consumer that died had taken and not done
        with (it is done with an item when it asks for the next one) goes to the others, perhaps a second
        time; without it the death of a consumer ends the channel.
        """
        settings = ChannelSettings(name, capacity_bytes, capacity, ordered, consumers, producers, redeliver)
        with self.lock:
            if name in self._channels:
                raise ConfigError(
                    f"there is a channel {name!r} already: drop it first or choose another name"
                )
            self._channels[name] = HubChannel(settings, self._numbers)
        return ChannelHandle(self.address, self._token, name, self._elsewhere)

    def drop(self, name: str) -> None:
        """Forget a channel; whoever still uses it finds it closed and empty."""
        with self.turn():
            channel = self._channels.pop(name)
            channel.end()
            self._changed.add(channel)

    def loads(self, name: str) -> dict[Any, float]:
        """The total weight that each consumer of a channel was given so far."""
        with self.lock:
            return dict(self._channels[name].exchange.loads)

    def close(self) -> None:
        """End all channels and the thread."""
        with self.turn():
            if self._closed:
                return
            self._closed = True
            HUBS_HERE.pop(self.address, None)
            for channel in self._channels.values():
                channel.end()
            self._changed.update(self._channels.values())
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def __enter__(self) -> ChannelHub:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, and send afterwards what is to be sent."""
        with self.lock:
            yield
            changed, self._changed = self._changed, set()
            for channel in changed:
                channel.flush()
            stuck = {each for each in self._connections if each.unsent and not each.flush()}
            news = stuck - self._stuck
            self._stuck = stuck
        if news:
            self._wake()

    def attach(self, channel: str, worker: str) -> DirectPort:
        """A direct connection for a worker of this process."""
        port = DirectPort(self)
        with self.turn():
            self._seat(port, channel, worker, self.pid, port.post)
        return port

    def hear(self, speaker: Connection | DirectPort, frame: Frame) -> None:
        """Take in a frame; the lock is held."""
        seat = self._seats.get(speaker)
        if seat is None:
            return
        channel, member = seat
        self._changed.add(channel)
        try:
            channel.handle(member, frame)
        except Exception as error:  # the border of a channel: all its members are told
            channel.fail(RlinfError(f"channel {channel.settings.name!r} cannot go on: {error!r}"))
        if member.left:
            if isinstance(speaker, Connection):
                speaker.mute()
            elif not +member.holding:
                self.lost(speaker)

    def lost(self, speaker: Connection | DirectPort) -> None:
        """A connection is closed; the lock is held."""
        seat = self._seats.pop(speaker, None)
        if seat is not None:
            self._changed.add(seat[0])
            seat[0].gone(seat[1])

    def _seat(self, speaker: Connection | DirectPort, name: str, worker: str, pid: int, post: Post) -> None:
        far = isinstance(speaker, Connection) and speaker.far
        channel = self._channels.get(name)
        if channel is None:
            there = ", ".join(self._channels) or "none"
            error = RlinfError(f"no channel {name!r}; there are: {there}.{suggest(name, self._channels)}")
            post(Say.REFUSED, (error,), (), ())
            return
        member = Member(worker, pid, post, channel.settings.redeliver, far)
        self._seats[speaker] = (channel, member)
        channel.join(member)

    def _run(self) -> None:
        while not self._closed:
            events = self._selector.select()
            with self.turn():
                for key, mask in events:
                    if key.data == "listener":
                        self._accept(self._listener.socket)
                    elif key.data == "outside":
                        self._accept(key.fileobj)
                    elif key.data == "wake":
                        self._wake_here.recv(4096)
                    elif mask & selectors.EVENT_READ:
                        self._listen_to(key.data)
            for connection in self._connections:
                self._watch(connection)
        self._end()

    def _accept(self, listener: Any) -> None:  # Any: a socket, of which the selector says less
        sock, _ = listener.accept()
        stay_alert(sock, _SILENCE_S)
        pid, user = peer(sock)
        if user not in (None, os.getuid()):
            sock.close()
            return
        connection = Connection(sock, pid, far=sock.family != socket.AF_UNIX)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _listen_to(self, connection: Connection) -> None:
        proved = connection.proved(self._token)
        if proved is None:
            return
        frames = connection.reader.read() if proved else None
        if frames is None:
            self._hang_up(connection)
            return
        for frame in frames:
            if frame.say == Say.HELLO:
                name, worker = frame.fields
                self._seat(connection, name, worker, connection.pid, connection.post)
            else:
                self.hear(connection, frame)

    def _hang_up(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.close()
        self._connections.discard(connection)
        self.lost(connection)

    def _watch(self, connection: Connection) -> None:
        """Wake up when a connection that was full takes something again."""
        stuck = connection in self._stuck
        if stuck != connection.watched:
            connection.watched = stuck
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if stuck else 0)
            self._selector.modify(connection.socket, mask, connection)

    def _wake(self) -> None:
        """Interrupt the thread's waiting, unless it has ended; one byte that is still unread is enough."""
        if threading.current_thread() is self._thread:
            return
        with self.lock, contextlib.suppress(BlockingIOError):
            if not self._ended:
                self._wake_there.send(b"w")

    def _end(self) -> None:
        with self.lock:
            for connection in list(self._connections):
                self._hang_up(connection)
            for port in [each for each in self._seats if isinstance(each, DirectPort)]:
                self.lost(port)
                port.hang_up()
            self._ended = True
            self._selector.close()
            for sock in (self._listener, self._outside, self._wake_here, self._wake_there):
                if sock is not None:
                    sock.close()
