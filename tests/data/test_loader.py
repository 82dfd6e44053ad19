import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from bayesify.data import CropAndFlip, Normalise, TensorData, loader


class CountedData(TensorData):
    """Data that count how often they are read."""

    num_reads = 0

    def __getitems__(self, indices):
        self.num_reads += 1
        return super().__getitems__(indices)


@pytest.fixture
def data():
    images = torch.randint(0, 256, (10, 1, 4, 4), dtype=torch.uint8)
    return CountedData(images, torch.arange(10), Normalise((0.5,), (0.25,)))


def targets_of(batches):
    return torch.cat([targets for _, targets in batches]).tolist()


def test_loader_is_a_plain_data_loader(data):
    assert type(loader(data, 4)) is DataLoader


def test_loader_reads_each_batch_once(data):
    batches = list(loader(data, 4))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert data.num_reads == 3
    assert torch.equal(torch.cat([inputs for inputs, _ in batches])[5], data[5][0])


def test_loader_keeps_the_order_unless_told(data):
    assert targets_of(loader(data, 3)) == list(range(10))


def test_loader_shuffle_is_complete_and_fixed_by_its_generator(data):
    def order(seed):
        generator = torch.Generator().manual_seed(seed)
        return targets_of(loader(data, 3, shuffle=True, generator=generator))

    assert sorted(order(0)) == list(range(10))
    assert order(0) == order(0)
    assert order(0) != order(1)


def test_loader_shuffles_anew_on_each_pass(data):
    batches = loader(data, 3, shuffle=True, generator=torch.Generator().manual_seed(0))
    assert targets_of(batches) != targets_of(batches)


def test_loader_drop_last_leaves_out_what_is_not_full(data):
    assert [len(targets) for _, targets in loader(data, 4, drop_last=True)] == [4, 4]


def test_loader_takes_one_example_and_more_than_there_are(data):
    assert [len(targets) for _, targets in loader(data, 1)] == [1] * 10
    assert [len(targets) for _, targets in loader(data, 100)] == [10]


def test_loader_reads_an_empty_set(data):
    assert list(loader(data.select(torch.tensor([], dtype=torch.int64)), 4)) == []


def test_loader_reads_a_subset_at_once(data):
    ((inputs, targets),) = list(loader(Subset(data, [9, 1]), 4))
    assert targets.tolist() == [9, 1]
    assert inputs.shape == (2, 1, 4, 4)
    assert data.num_reads == 1


def test_loader_stacks_a_data_set_that_knows_no_batches():
    class Plain(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.full((2,), float(index)), index

    inputs, targets = next(iter(loader(Plain(), 3)))
    assert inputs.shape == (3, 2)
    assert targets.tolist() == [0, 1, 2]


def test_loader_parts_can_be_sent_to_another_process(data):
    batches = loader(TensorData(data.inputs, data.targets, data.transform, CropAndFlip()), 4)
    dataset = pickle.loads(pickle.dumps(batches.dataset))
    collate = pickle.loads(pickle.dumps(batches.collate_fn))
    assert targets_of(DataLoader(dataset, batch_size=4, collate_fn=collate)) == list(range(10))


def test_loader_with_a_worker_gives_the_same_batches(data):
    here, there = list(loader(data, 4)), list(loader(data, 4, num_workers=1))
    assert len(here) == len(there) == 3
    for (inputs, targets), (other_inputs, other_targets) in zip(here, there, strict=True):
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(targets, other_targets)


def test_loader_can_be_rebuilt_around_a_distributed_sampler(data):
    batches = loader(data, 2)
    seen = []
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False)
        part = DataLoader(
            batches.dataset,
            batch_size=batches.batch_size,
            sampler=sampler,
            collate_fn=batches.collate_fn,
        )
        seen += targets_of(part)
    assert sorted(seen) == list(range(10))


def test_loader_passes_through_fabric(data):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    assert targets_of(fabric.setup_dataloaders(loader(data, 4))) == list(range(10))
