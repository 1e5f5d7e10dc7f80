"""The calls of stratakv.v1.Admin on one channel."""

from __future__ import annotations

import grpc

from kv_wire.gen import admin_pb2

ADMIN_SERVICE = "stratakv.v1.Admin"


class AdminCalls:
    """One callable a method, each taking its request and `timeout` in seconds."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.invalidate = channel.unary_unary(
            f"/{ADMIN_SERVICE}/Invalidate",
            request_serializer=admin_pb2.InvalidateRequest.SerializeToString,
            response_deserializer=admin_pb2.InvalidateResponse.FromString,
        )
        self.await_fence = channel.unary_unary(
            f"/{ADMIN_SERVICE}/AwaitFence",
            request_serializer=admin_pb2.AwaitFenceRequest.SerializeToString,
            response_deserializer=admin_pb2.InvalidateResponse.FromString,
        )
        self.dry_run = channel.unary_unary(
            f"/{ADMIN_SERVICE}/DryRun",
            request_serializer=admin_pb2.DryRunRequest.SerializeToString,
            response_deserializer=admin_pb2.DryRunResponse.FromString,
        )
        self.announce_weights = channel.unary_unary(
            f"/{ADMIN_SERVICE}/AnnounceWeights",
            request_serializer=admin_pb2.AnnounceWeightsRequest.SerializeToString,
            response_deserializer=admin_pb2.InvalidateResponse.FromString,
        )
        self.read_log = channel.unary_stream(
            f"/{ADMIN_SERVICE}/ReadLog",
            request_serializer=admin_pb2.ReadLogRequest.SerializeToString,
            response_deserializer=admin_pb2.LogRecord.FromString,
        )
        self.members = channel.unary_stream(
            f"/{ADMIN_SERVICE}/Members",
            request_serializer=admin_pb2.MembersRequest.SerializeToString,
            response_deserializer=admin_pb2.MembersResponse.FromString,
        )
        self.forget_members = channel.unary_unary(
            f"/{ADMIN_SERVICE}/ForgetMembers",
            request_serializer=admin_pb2.ForgetMembersRequest.SerializeToString,
            response_deserializer=admin_pb2.ForgetMembersResponse.FromString,
        )
        self.inspect = channel.unary_unary(
            f"/{ADMIN_SERVICE}/Inspect",
            request_serializer=admin_pb2.InspectRequest.SerializeToString,
            response_deserializer=admin_pb2.InspectResponse.FromString,
        )
        self.namespaces = channel.unary_stream(
            f"/{ADMIN_SERVICE}/Namespaces",
            request_serializer=admin_pb2.NamespacesRequest.SerializeToString,
            response_deserializer=admin_pb2.NamespacesResponse.FromString,
        )
        self.set_replicas = channel.unary_unary(
            f"/{ADMIN_SERVICE}/SetReplicas",
            request_serializer=admin_pb2.SetReplicasRequest.SerializeToString,
            response_deserializer=admin_pb2.SetReplicasResponse.FromString,
        )
        self.record = channel.unary_stream(
            f"/{ADMIN_SERVICE}/Record",
            request_serializer=admin_pb2.RecordRequest.SerializeToString,
            response_deserializer=admin_pb2.RecordResponse.FromString,
        )
        self._add_pins(channel)

    def _add_pins(self, channel: grpc.Channel) -> None:
        self.pin = channel.unary_unary(
            f"/{ADMIN_SERVICE}/Pin",
            request_serializer=admin_pb2.PinRequest.SerializeToString,
            response_deserializer=admin_pb2.PinResponse.FromString,
        )
        self.pins = channel.unary_unary(
            f"/{ADMIN_SERVICE}/Pins",
            request_serializer=admin_pb2.PinsRequest.SerializeToString,
            response_deserializer=admin_pb2.PinsResponse.FromString,
        )
        self.unpin = channel.unary_unary(
            f"/{ADMIN_SERVICE}/Unpin",
            request_serializer=admin_pb2.UnpinRequest.SerializeToString,
            response_deserializer=admin_pb2.UnpinResponse.FromString,
        )
