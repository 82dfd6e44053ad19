import pytest
import torch
from torch.utils.data import default_collate

from bayesify.data import CropAndFlip, DataSet, Normalise, TensorData, split


@pytest.fixture
def pictures():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10, 3, 4, 4), dtype=torch.uint8, generator=generator)
    return TensorData(images, torch.arange(10), Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))


def test_tensor_data_batch_equals_items_collated_one_by_one(pictures):
    indices = [7, 0, 7, 3]
    inputs, targets = pictures.__getitems__(indices)
    expected_inputs, expected_targets = default_collate([pictures[index] for index in indices])
    assert torch.equal(inputs, expected_inputs)
    assert torch.equal(targets, expected_targets)
    assert targets.tolist() == indices


def test_tensor_data_iterates_over_every_item_and_stops(pictures):
    assert [int(target) for _, target in pictures] == list(range(10))


def test_tensor_data_counts_negative_indices_from_the_end(pictures):
    assert int(pictures[-1][1]) == 9
    assert int(pictures[-10][1]) == 0


@pytest.mark.parametrize("index", [10, -11])
def test_tensor_data_refuses_an_index_outside(pictures, index):
    with pytest.raises(IndexError, match=rf"index must lie in \[-10, 9\], got {index}"):
        pictures[index]


def test_tensor_data_gives_an_empty_batch_its_shape(pictures):
    inputs, targets = pictures.__getitems__([])
    assert inputs.shape == (0, 3, 4, 4)
    assert inputs.dtype == torch.float32
    assert targets.shape == (0,)


def test_tensor_data_keeps_stored_inputs_as_they_are(pictures):
    before = pictures.inputs.clone()
    pictures.with_augmentation(CropAndFlip()).__getitems__(list(range(10)))
    assert torch.equal(pictures.inputs, before)
    assert pictures.inputs.dtype == torch.uint8


def test_tensor_data_augments_before_it_transforms(pictures):
    def negate(images):
        assert images.dtype == torch.uint8
        return 255 - images

    result, _ = pictures.with_augmentation(negate)[0]
    expected = pictures.transform(255 - pictures.inputs[:1])[0]
    assert torch.equal(result, expected)


def test_tensor_data_select_copies_the_rows(pictures):
    part = pictures.select(torch.tensor([4, 2]))
    assert part.targets.tolist() == [4, 2]
    assert torch.equal(part[0][0], pictures[4][0])


def test_tensor_data_makes_batches_on_the_device_that_holds_it(pictures):
    held = pictures.with_augmentation(CropAndFlip(padding=1)).to("meta")
    inputs, targets = held.__getitems__([7, 0, 7])
    assert inputs.device.type == targets.device.type == "meta"
    assert (inputs.shape, inputs.dtype, targets.shape) == ((3, 3, 4, 4), torch.float32, (3,))
    kept, held_out = split(held, 4)
    assert kept.inputs.device.type == held_out.targets.device.type == "meta"
    assert (len(kept), len(held_out)) == (6, 4)
    assert pictures.inputs.device.type == "cpu"


def test_tensor_data_may_keep_targets_elsewhere(pictures):
    data = TensorData(pictures.inputs, pictures.targets.to("meta"), pictures.transform)
    inputs, targets = data.__getitems__([1, 2])
    assert torch.equal(inputs, pictures.__getitems__([1, 2])[0])
    assert targets.device.type == "meta"


def test_tensor_data_says_what_it_holds(pictures):
    assert repr(pictures) == "TensorData(10 examples of shape (3, 4, 4), uint8)"


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [(torch.zeros(3, 2), torch.zeros(2)), (torch.zeros(()), torch.zeros(()))],
)
def test_tensor_data_refuses_inputs_without_targets(inputs, targets):
    with pytest.raises(ValueError, match="one row per example each, got shapes"):
        TensorData(inputs, targets)


def test_data_set_knows_the_shape_of_an_input(pictures):
    assert DataSet("pictures", pictures, pictures, "classification", 10).input_shape == (3, 4, 4)


def test_data_set_is_held_on_a_device_as_a_whole(pictures):
    augmented = pictures.with_augmentation(CropAndFlip())
    data = DataSet("pictures", augmented, pictures, "classification", 10)
    held = data.to("meta")
    assert held.train.inputs.device.type == held.test.targets.device.type == "meta"
    assert held.train.augmentation is augmented.augmentation
    assert held.test.transform is pictures.transform
    again = data.to("cpu")
    assert torch.equal(again.test[3][0], data.test[3][0])


def test_data_set_normalised_reads_both_parts_through_new_statistics(pictures):
    augmented = pictures.with_augmentation(CropAndFlip())
    data = DataSet("pictures", augmented, pictures, "classification", 10)
    other = data.normalised((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    torch.testing.assert_close(other.test[0][0], pictures.inputs[0] / 255)
    assert other.mean == (0.0, 0.0, 0.0)
    assert other.std == (1.0, 1.0, 1.0)
    assert other.train.transform == Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert other.train.augmentation is augmented.augmentation
    assert data.test.transform == Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


@pytest.mark.parametrize(
    ("task", "num_classes", "classes", "message"),
    [
        ("classification", None, None, "num_classes must be given for classification"),
        ("regression", 3, None, "and only there, got task='regression', num_classes=3"),
        ("classification", 10, ("one",), "classes must hold 10 names, one per class, got 1"),
    ],
)
def test_data_set_refuses_a_contradiction(pictures, task, num_classes, classes, message):
    with pytest.raises(ValueError, match=message):
        DataSet("pictures", pictures, pictures, task, num_classes, classes)
