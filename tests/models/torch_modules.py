"""PyTorch modules for the tests: each uses other operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A residual block with group normalisation; its ReLU works in place."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding="same", groups=2)
        self.shortcut = nn.Identity() if before == channels and stride == 1 else nn.Conv2d(before, channels, 1, stride)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.second(self.act(self.norm(self.first(x)))) + self.shortcut(x))


class Small(nn.Module):
    """A ResNet-like classifier."""

    def __init__(self, channels=1, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2))
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(8, classes)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.blocks(F.gelu(self.stem(x))), 1)
        return self.out(self.drop(x.view(x.size(0), -1)))


class Mixed(nn.Module):
    """Depthwise and dilated convolutions, every kind of pooling, joins and cuts."""

    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(3, 6, (3, 5), stride=(1, 2), padding=(1, 2), dilation=(2, 1), groups=3)
        self.norm = nn.InstanceNorm2d(6, affine=True)
        self.out = nn.Linear(6 * 4 + 2 * 6 * 2, 5)
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1))

    def forward(self, x):
        x = F.silu(self.norm(self.depth((x - self.mean) / 2)))
        a = F.max_pool2d(x, 3, stride=2, padding=1)
        b = F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)
        c = torch.cat([F.adaptive_avg_pool2d(a, (2, 2)), F.adaptive_max_pool2d(b, (3, 3))[..., :1, :2]], dim=2)
        left, right = torch.stack([a, b], dim=1).mean(dim=(3, 4)).chunk(2, dim=1)
        d = torch.tanh(left.squeeze(1)) * torch.sigmoid(right.squeeze(1)).square()
        e = F.leaky_relu(c.permute(0, 2, 3, 1).reshape(len(x), -1), 0.2)[:, : 6 * 4]
        tail = [d, F.elu(d), F.hardswish(d), F.softplus(d)]
        return self.out(torch.cat([e, *tail], dim=1)).log_softmax(dim=-1)


class Words(nn.Module):
    """A transformer on tokens, with shared weights."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(8)
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.out = nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.layer(self.embed(tokens))
        return self.out(self.second(F.relu(self.first(self.norm(x).mean(dim=1)))))


class Series(nn.Module):
    """Convolutions over one axis; a parameter at the root; one frozen layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1) * 1.5)
        self.conv = nn.Conv1d(1, 4, 3, stride=2, padding=1)
        self.frozen = nn.Conv1d(4, 4, 1).requires_grad_(False)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = self.frozen(F.relu(self.conv(x.unsqueeze(1) * self.scale)))
        return self.out(F.avg_pool1d(x, 2).amax(dim=-1))
