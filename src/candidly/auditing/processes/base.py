"""The contract of a process: how likely are a row's answers, for each class as the truth?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.answers import Answers
from candidly.sets import CandidateSets

Floats = NDArray[np.floating[Any]]

LEAST = 1e-300  # probability of an answer: a label that nobody gives has none


@dataclass(frozen=True)
class Evidence:
    """What people said about n rows.

    Attributes
    ----------
    sets : CandidateSets
        The candidate sets.
    answers : Answers or None
        The answers that the sets are the unions of, if they are known.

    Examples
    --------
    >>> evidence = Evidence(CandidateSets([["a"], ["a", "b"]]), None)
    >>> evidence.numbers
    array([1, 1])
    """

    sets: CandidateSets
    answers: Answers | None = None

    @property
    def n_classes(self) -> int:
        """The number of classes c."""
        return self.sets.n_classes

    def __len__(self) -> int:
        return len(self.sets)

    @cached_property
    def membership(self) -> sparse.csr_array:
        """(m, c + 1): which classes each answer includes; a set is one answer if nobody is named.

        The last column stands for none of the classes.
        """
        if self.answers is not None:
            return self.answers.membership()
        ones = np.ones(len(self.sets.indices))
        indices = self.sets.indices.astype(np.int32)
        shape = (len(self), self.n_classes + 1)
        return sparse.csr_array((ones, indices, self.sets.indptr), shape)

    @cached_property
    def row(self) -> NDArray[np.int64]:
        """(m,) the row of each answer."""
        return np.arange(len(self)) if self.answers is None else self.answers.row

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(m,) how many people gave each answer."""
        if self.answers is None:
            return np.ones(len(self), dtype=np.int64)
        return self.answers.counts

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """(n,) the number of answers to each row."""
        return np.bincount(self.row, self.counts, minlength=len(self)).astype(np.int64)

    @cached_property
    def per_row(self) -> sparse.csr_array:
        """(n, m): adds what is known of answers to their rows, once per person."""
        place = (self.row, np.arange(len(self.row)))
        return sparse.csr_array((self.counts.astype(np.float64), place), (len(self), len(self.row)))

    @cached_property
    def single_votes(self) -> sparse.csr_array:
        """(n, c) votes for each class by the answers that name one label."""
        one = np.flatnonzero(np.diff(self.membership[:, :-1].tocsr().indptr) == 1)
        return sparse.csr_array(self.per_row[:, one] @ self.membership[one, :-1])

    @cached_property
    def several_labels(self) -> NDArray[np.int64]:
        """The answers that name more than one label."""
        return np.flatnonzero(np.diff(self.membership[:, :-1].tocsr().indptr) > 1)

    @cached_property
    def said(self) -> Said:
        """All answers."""
        return Said(self.per_row, self.membership)

    def said_by(self, group: NDArray[np.int64], k: int) -> SaidBy:
        """Take the answers of groups of annotators apart; once for the same groups.

        Parameters
        ----------
        group : int array of shape (annotators,)
            The group of each annotator, from 0 to k - 1.
        k : int

        Returns
        -------
        SaidBy
        """
        key = (group.tobytes(), k)
        if key not in self._groups:
            who = np.zeros(len(self.row), dtype=np.int64)
            if self.answers is not None:
                who = group[self.answers.annotator]
            self._groups[key] = SaidBy.of(self, who, k)
        return self._groups[key]

    @cached_property
    def _groups(self) -> dict[tuple[bytes, int], SaidBy]:
        return {}

    @cached_property
    def none_votes(self) -> Floats:
        """(n,) how many people said "none of the classes"."""
        return self.per_row @ self.membership[:, [self.n_classes]].toarray()[:, 0]

    def __getitem__(self, rows: Any) -> Evidence:
        answers = None if self.answers is None else self.answers[rows]
        return Evidence(self.sets[rows], answers)


@dataclass(frozen=True)
class Said:
    """Some answers to n rows.

    Attributes
    ----------
    per_row : sparse array of shape (n, m)
        Adds what is known of answers to their rows, once per person.
    membership : sparse array of shape (m, c + 1)
        Which classes each answer includes; the last column is none of the classes.
    """

    per_row: sparse.csr_array
    membership: sparse.csr_array

    @cached_property
    def votes(self) -> sparse.csr_array | None:
        """(n, c + 1) votes for each label, if every answer is one label: a shorter way."""
        if (np.diff(self.membership.indptr) != 1).any():
            return None
        return self.per_row @ self.membership

    def log_likelihood(self, matrix: Floats) -> Floats:
        """Compute log P(answers | truth = t) of each row.

        Parameters
        ----------
        matrix : array of shape (c, c + 1)
            Row t: probabilities of the answers where t is the truth.

        Returns
        -------
        array of shape (n, c)
        """
        if self.votes is not None:
            return self.votes @ np.log(np.maximum(matrix.T, LEAST))
        return self.per_row @ np.log(np.maximum(self.membership @ matrix.T, LEAST))

    def counted(self, matrix: Floats, posterior: Floats) -> Floats:
        """Count the answers by truth and label; one of several labels is shared among them.

        Parameters
        ----------
        matrix : array of shape (c, c + 1)
            The current guess.
        posterior : array of shape (n, c)
            P(truth = t) of each row.

        Returns
        -------
        array of shape (c, c + 1)
        """
        if self.votes is not None:
            return (self.votes.T @ posterior).T
        share = (self.per_row.T @ posterior) / np.maximum(self.membership @ matrix.T, LEAST)
        return matrix * (self.membership.T @ share).T


@dataclass(frozen=True)
class SaidBy:
    """The answers of k groups of annotators to n rows.

    Attributes
    ----------
    parts : list of Said, or None
        The answers of each group.
    votes : sparse array of shape (n, k * (c + 1)), or None
        Votes for each label by group, if every answer is one label: a shorter way.
    """

    parts: list[Said] | None
    votes: sparse.csr_array | None

    @classmethod
    def of(cls, evidence: Evidence, who: NDArray[np.int64], k: int) -> SaidBy:
        """Take answers apart.

        Parameters
        ----------
        evidence : Evidence
        who : int array of shape (m,)
            The group of each answer.
        k : int

        Returns
        -------
        SaidBy
        """
        labels = evidence.membership
        counts = evidence.counts.astype(np.float64)
        if (np.diff(labels.indptr) == 1).all():
            place = (evidence.row, who * labels.shape[1] + labels.indices)
            shape = (len(evidence), k * labels.shape[1])
            return cls(None, sparse.csr_array((counts, place), shape))
        parts = []
        for number in range(k):
            mine = np.flatnonzero(who == number)
            place = (evidence.row[mine], np.arange(len(mine)))
            per_row = sparse.csr_array((counts[mine], place), (len(evidence), len(mine)))
            parts.append(Said(per_row, labels[mine]))
        return cls(parts, None)

    def log_likelihood(self, matrices: Floats) -> Floats:
        """Compute log P(answers | truth = t) of each row.

        Parameters
        ----------
        matrices : array of shape (k, c, c + 1)
            The matrix of each group.

        Returns
        -------
        array of shape (n, c)
        """
        c = matrices.shape[1]
        if self.votes is not None:
            logs = np.log(np.maximum(matrices, LEAST))
            return self.votes @ logs.transpose(0, 2, 1).reshape(-1, c)
        assert self.parts is not None
        total = np.zeros((self.parts[0].per_row.shape[0], c))
        for part, matrix in zip(self.parts, matrices, strict=True):
            total += part.log_likelihood(matrix)
        return total

    def counted(self, matrices: Floats, posterior: Floats) -> Floats:
        """Count the answers of each group by truth and label.

        Parameters
        ----------
        matrices : array of shape (k, c, c + 1)
        posterior : array of shape (n, c)

        Returns
        -------
        array of shape (k, c, c + 1)
        """
        k, c, labels = matrices.shape
        if self.votes is not None:
            return (self.votes.T @ posterior).reshape(k, labels, c).transpose(0, 2, 1)
        assert self.parts is not None
        each = zip(self.parts, matrices, strict=True)
        return np.stack([part.counted(matrix, posterior) for part, matrix in each])


class Process(ABC):
    """A way in which the answers to a row arise from its truth.

    Attributes
    ----------
    name : str
        What `process=` calls it.
    words : str
        What it assumes, as the end of the sentence "The answers are best explained by ...".
    """

    name: ClassVar[str]
    words: ClassVar[str]

    @classmethod
    @abstractmethod
    def start(cls, evidence: Evidence) -> Process:
        """Make a first guess for the rows that it will be fitted to.

        Parameters
        ----------
        evidence : Evidence

        Returns
        -------
        Process
        """

    @abstractmethod
    def log_likelihood(self, evidence: Evidence) -> Floats:
        """Compute log P(answers to the row | its truth is class t).

        Parameters
        ----------
        evidence : Evidence
            Of n rows.

        Returns
        -------
        array of shape (n, c)
        """

    @abstractmethod
    def fitted(self, evidence: Evidence, posterior: Floats) -> Process:
        """Fit to rows whose truth is known up to probabilities (an M-step).

        Parameters
        ----------
        evidence : Evidence
            Of n rows.
        posterior : array of shape (n, c)
            P(truth = t | everything) of each row; the rest to 1 is "none of the classes".

        Returns
        -------
        Process
        """

    def answers_per_row(self, evidence: Evidence) -> NDArray[np.int64]:
        """Count the answers behind each row.

        Parameters
        ----------
        evidence : Evidence

        Returns
        -------
        int array of shape (n,)
        """
        return evidence.numbers

    @property
    def none_share(self) -> float:
        """Mean probability that an answer to a row of a known class is "none of the classes"."""
        return 0.0
